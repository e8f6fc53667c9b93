#pragma once
// The Python class SpecialSplitter, which the encoder shares.
#include <nanobind/nanobind.h>

#include <memory>

#include "lmworks/special_tokens.h"

namespace lmworks {

// The query for `actions`, checked to be one per special token. Call it with the GIL held.
std::shared_ptr<const SpecialQuery> make_query(const SpecialMatcher& matcher,
                                               const nanobind::bytes& actions);

class SpecialSplitter {
 public:
  SpecialSplitter(const nanobind::list& tokens, const nanobind::bytes& flags);
  std::shared_ptr<const SpecialMatcher> matcher() const { return matcher_; }
  nanobind::object find(const nanobind::bytes& text, const nanobind::bytes& actions) const;
  size_t cut(const nanobind::bytes& text, const nanobind::bytes& actions,
             const nanobind::object& pattern) const;

 private:
  std::shared_ptr<const SpecialMatcher> matcher_;
};

}  // namespace lmworks
