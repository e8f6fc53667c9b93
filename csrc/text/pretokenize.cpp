#include "lmworks/pretokenize.h"
