"""Hugging Face's Unicode, where not Python's. By csrc/text/make_normalizer_tables.py.

Each table is a character class of the `re` module, without its brackets.
"""

from typing import Final

INERT: Final = (
    r"\u0558\u058b-\u058c\u05c8-\u05c9\u07fd\u0897-\u089f\u08ca-\u08d3\u09fe\u0c3c\u0d3b-"
    r"\u0d3c\u0eba\u1715\u1abf-\u1af0\u1df6-\u1dfa\u209d-\u209f\u32ff\ua7f1-\ua7f4\ua82c\uab69"
    r"\U000105c9\U000105e4\U00010781-\U00010785\U00010787-\U000107b0\U000107b2-\U000107bf"
    r"\U00010d24-\U00010d27\U00010d69-\U00010d6d\U00010eab-\U00010eac\U00010ecb-\U00010ecf"
    r"\U00010ef0-\U00010efb\U00010efd-\U00010eff\U00010f46-\U00010f50\U00010f82-\U00010f85"
    r"\U00011070\U0001133b\U00011383\U00011385\U0001138e\U00011391\U000113b8\U000113bb"
    r"\U000113c2\U000113c5\U000113c7-\U000113c9\U000113ce-\U000113d0\U0001145e\U00011839-"
    r"\U0001183a\U00011930\U00011938\U0001193d-\U0001193e\U00011943\U000119e0\U00011a34"
    r"\U00011a47\U00011a99\U00011d42\U00011d44-\U00011d45\U00011d97\U00011f41-\U00011f42"
    r"\U0001611e-\U00016129\U0001612f\U00016d67-\U00016d6a\U00016ff0-\U00016ff1\U0001b123-"
    r"\U0001b126\U0001ccd6-\U0001ccf9\U0001d127-\U0001d128\U0001d250-\U0001d252\U0001d25b-"
    r"\U0001d25c\U0001d25f\U0001d280-\U0001d281\U0001d6a6\U0001df95\U0001dfcd-\U0001dfff"
    r"\U0001e030-\U0001e06d\U0001e08f\U0001e130-\U0001e136\U0001e2ae\U0001e2ec-\U0001e2ef"
    r"\U0001e4ec-\U0001e4ef\U0001e5ee-\U0001e5ef\U0001e6e3\U0001e6e6\U0001e6ee-\U0001e6ef"
    r"\U0001e6f5\U0001f16c\U0001fbf0-\U0001fbf9"
)
"""Unchanged by normalization, and never moved."""

NONSPACING: Final = (
    r"\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1-\u05c2\u05c4-\u05c5\u05c7\u0610-"
    r"\u061a\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7-\u06e8\u06ea-\u06ed\u0711"
    r"\u0730-\u074a\u07a6-\u07b0\u07eb-\u07f3\u0816-\u0819\u081b-\u0823\u0825-\u0827\u0829-"
    r"\u082d\u0859-\u085b\u08d4-\u08e1\u08e3-\u0903\u093a-\u093c\u093e-\u094f\u0951-\u0957"
    r"\u0962-\u0963\u0981-\u0983\u09bc\u09be-\u09c4\u09c7-\u09c8\u09cb-\u09cd\u09d7\u09e2-"
    r"\u09e3\u0a01-\u0a03\u0a3c\u0a3e-\u0a42\u0a47-\u0a48\u0a4b-\u0a4d\u0a51\u0a70-\u0a71"
    r"\u0a75\u0a81-\u0a83\u0abc\u0abe-\u0ac5\u0ac7-\u0ac9\u0acb-\u0acd\u0ae2-\u0ae3\u0b01-"
    r"\u0b03\u0b3c\u0b3e-\u0b44\u0b47-\u0b48\u0b4b-\u0b4d\u0b56-\u0b57\u0b62-\u0b63\u0b82"
    r"\u0bbe-\u0bc2\u0bc6-\u0bc8\u0bca-\u0bcd\u0bd7\u0c00-\u0c03\u0c3e-\u0c44\u0c46-\u0c48"
    r"\u0c4a-\u0c4d\u0c55-\u0c56\u0c62-\u0c63\u0c81-\u0c83\u0cbc\u0cbe-\u0cc4\u0cc6-\u0cc8"
    r"\u0cca-\u0ccd\u0cd5-\u0cd6\u0ce2-\u0ce3\u0d01-\u0d03\u0d3e-\u0d44\u0d46-\u0d48\u0d4a-"
    r"\u0d4d\u0d57\u0d62-\u0d63\u0d82-\u0d83\u0dca\u0dcf-\u0dd4\u0dd6\u0dd8-\u0ddf\u0df2-"
    r"\u0df3\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0eb9\u0ebb-\u0ebc\u0ec8-\u0ecd"
    r"\u0f18-\u0f19\u0f35\u0f37\u0f39\u0f3e-\u0f3f\u0f71-\u0f84\u0f86-\u0f87\u0f8d-\u0f97"
    r"\u0f99-\u0fbc\u0fc6\u102b-\u103e\u1056-\u1059\u105e-\u1060\u1062-\u1064\u1067-\u106d"
    r"\u1071-\u1074\u1082-\u108d\u108f\u109a-\u109d\u135d-\u135f\u1712-\u1714\u1732-\u1734"
    r"\u1752-\u1753\u1772-\u1773\u17b4-\u17d3\u17dd\u180b-\u180d\u1885-\u1886\u18a9\u1920-"
    r"\u192b\u1930-\u193b\u1a17-\u1a1b\u1a55-\u1a5e\u1a60-\u1a7c\u1a7f\u1ab0-\u1abe\u1b00-"
    r"\u1b04\u1b34-\u1b44\u1b6b-\u1b73\u1b80-\u1b82\u1ba1-\u1bad\u1be6-\u1bf3\u1c24-\u1c37"
    r"\u1cd0-\u1cd2\u1cd4-\u1ce8\u1ced\u1cf2-\u1cf4\u1cf8-\u1cf9\u1dc0-\u1df5\u1dfb-\u1dff"
    r"\u20d0-\u20f0\u2cef-\u2cf1\u2d7f\u2de0-\u2dff\u302a-\u302f\u3099-\u309a\ua66f-\ua672"
    r"\ua674-\ua67d\ua69e-\ua69f\ua6f0-\ua6f1\ua802\ua806\ua80b\ua823-\ua827\ua880-\ua881"
    r"\ua8b4-\ua8c5\ua8e0-\ua8f1\ua926-\ua92d\ua947-\ua953\ua980-\ua983\ua9b3-\ua9c0\ua9e5"
    r"\uaa29-\uaa36\uaa43\uaa4c-\uaa4d\uaa7b-\uaa7d\uaab0\uaab2-\uaab4\uaab7-\uaab8\uaabe-"
    r"\uaabf\uaac1\uaaeb-\uaaef\uaaf5-\uaaf6\uabe3-\uabea\uabec-\uabed\ufb1e\ufe00-\ufe0f"
    r"\ufe20-\ufe2f\U000101fd\U000102e0\U00010376-\U0001037a\U00010a01-\U00010a03\U00010a05-"
    r"\U00010a06\U00010a0c-\U00010a0f\U00010a38-\U00010a3a\U00010a3f\U00010ae5-\U00010ae6"
    r"\U00011000-\U00011002\U00011038-\U00011046\U0001107f-\U00011082\U000110b0-\U000110ba"
    r"\U00011100-\U00011102\U00011127-\U00011134\U00011173\U00011180-\U00011182\U000111b3-"
    r"\U000111c0\U000111ca-\U000111cc\U0001122c-\U00011237\U0001123e\U000112df-\U000112ea"
    r"\U00011300-\U00011303\U0001133c\U0001133e-\U00011344\U00011347-\U00011348\U0001134b-"
    r"\U0001134d\U00011357\U00011362-\U00011363\U00011366-\U0001136c\U00011370-\U00011374"
    r"\U00011435-\U00011446\U000114b0-\U000114c3\U000115af-\U000115b5\U000115b8-\U000115c0"
    r"\U000115dc-\U000115dd\U00011630-\U00011640\U000116ab-\U000116b7\U0001171d-\U0001172b"
    r"\U00011c2f-\U00011c36\U00011c38-\U00011c3f\U00011c92-\U00011ca7\U00011ca9-\U00011cb6"
    r"\U00016af0-\U00016af4\U00016b30-\U00016b36\U00016f51-\U00016f7e\U00016f8f-\U00016f92"
    r"\U0001bc9d-\U0001bc9e\U0001d165-\U0001d169\U0001d16d-\U0001d172\U0001d17b-\U0001d182"
    r"\U0001d185-\U0001d18b\U0001d1aa-\U0001d1ad\U0001d242-\U0001d244\U0001da00-\U0001da36"
    r"\U0001da3b-\U0001da6c\U0001da75\U0001da84\U0001da9b-\U0001da9f\U0001daa1-\U0001daaf"
    r"\U0001e000-\U0001e006\U0001e008-\U0001e018\U0001e01b-\U0001e021\U0001e023-\U0001e024"
    r"\U0001e026-\U0001e02a\U0001e8d0-\U0001e8d6\U0001e944-\U0001e94a\U000e0100-\U000e01ef"
)
"""Marks that StripAccents removes."""

PUNCTUATION: Final = (
    r"\u0021-\u002f\u003a-\u0040\u005b-\u0060\u007b-\u007e\u00a1\u00a7\u00ab\u00b6-\u00b7"
    r"\u00bb\u00bf\u037e\u0387\u055a-\u055f\u0589-\u058a\u05be\u05c0\u05c3\u05c6\u05f3-\u05f4"
    r"\u0609-\u060a\u060c-\u060d\u061b\u061e-\u061f\u066a-\u066d\u06d4\u0700-\u070d\u07f7-"
    r"\u07f9\u0830-\u083e\u085e\u0964-\u0965\u0970\u0af0\u0df4\u0e4f\u0e5a-\u0e5b\u0f04-\u0f12"
    r"\u0f14\u0f3a-\u0f3d\u0f85\u0fd0-\u0fd4\u0fd9-\u0fda\u104a-\u104f\u10fb\u1360-\u1368"
    r"\u1400\u166d-\u166e\u169b-\u169c\u16eb-\u16ed\u1735-\u1736\u17d4-\u17d6\u17d8-\u17da"
    r"\u1800-\u180a\u1944-\u1945\u1a1e-\u1a1f\u1aa0-\u1aa6\u1aa8-\u1aad\u1b5a-\u1b60\u1bfc-"
    r"\u1bff\u1c3b-\u1c3f\u1c7e-\u1c7f\u1cc0-\u1cc7\u1cd3\u2010-\u2027\u2030-\u2043\u2045-"
    r"\u2051\u2053-\u205e\u207d-\u207e\u208d-\u208e\u2308-\u230b\u2329-\u232a\u2768-\u2775"
    r"\u27c5-\u27c6\u27e6-\u27ef\u2983-\u2998\u29d8-\u29db\u29fc-\u29fd\u2cf9-\u2cfc\u2cfe-"
    r"\u2cff\u2d70\u2e00-\u2e2e\u2e30-\u2e42\u3001-\u3003\u3008-\u3011\u3014-\u301f\u3030"
    r"\u303d\u30a0\u30fb\ua4fe-\ua4ff\ua60d-\ua60f\ua673\ua67e\ua6f2-\ua6f7\ua874-\ua877\ua8ce"
    r"-\ua8cf\ua8f8-\ua8fa\ua8fc\ua92e-\ua92f\ua95f\ua9c1-\ua9cd\ua9de-\ua9df\uaa5c-\uaa5f"
    r"\uaade-\uaadf\uaaf0-\uaaf1\uabeb\ufd3e-\ufd3f\ufe10-\ufe19\ufe30-\ufe52\ufe54-\ufe61"
    r"\ufe63\ufe68\ufe6a-\ufe6b\uff01-\uff03\uff05-\uff0a\uff0c-\uff0f\uff1a-\uff1b\uff1f-"
    r"\uff20\uff3b-\uff3d\uff3f\uff5b\uff5d\uff5f-\uff65\U00010100-\U00010102\U0001039f"
    r"\U000103d0\U0001056f\U00010857\U0001091f\U0001093f\U00010a50-\U00010a58\U00010a7f"
    r"\U00010af0-\U00010af6\U00010b39-\U00010b3f\U00010b99-\U00010b9c\U00011047-\U0001104d"
    r"\U000110bb-\U000110bc\U000110be-\U000110c1\U00011140-\U00011143\U00011174-\U00011175"
    r"\U000111c5-\U000111c9\U000111cd\U000111db\U000111dd-\U000111df\U00011238-\U0001123d"
    r"\U000112a9\U000114c6\U000115c1-\U000115d7\U00011641-\U00011643\U0001173c-\U0001173e"
    r"\U00012470-\U00012474\U00016a6e-\U00016a6f\U00016af5\U00016b37-\U00016b3b\U00016b44"
    r"\U0001bc9f\U0001da87-\U0001da8b"
)
"""What Punctuation cuts at."""

LOWER: Final = {
    0x1C89: "\u1c8a",
    0xA7CB: "\u0264",
    0xA7CC: "\ua7cd",
    0xA7CE: "\ua7cf",
    0xA7D2: "\ua7d3",
    0xA7D4: "\ua7d5",
    0xA7DA: "\ua7db",
    0xA7DC: "\u019b",
    0x10D50: "\U00010d70",
    0x10D51: "\U00010d71",
    0x10D52: "\U00010d72",
    0x10D53: "\U00010d73",
    0x10D54: "\U00010d74",
    0x10D55: "\U00010d75",
    0x10D56: "\U00010d76",
    0x10D57: "\U00010d77",
    0x10D58: "\U00010d78",
    0x10D59: "\U00010d79",
    0x10D5A: "\U00010d7a",
    0x10D5B: "\U00010d7b",
    0x10D5C: "\U00010d7c",
    0x10D5D: "\U00010d7d",
    0x10D5E: "\U00010d7e",
    0x10D5F: "\U00010d7f",
    0x10D60: "\U00010d80",
    0x10D61: "\U00010d81",
    0x10D62: "\U00010d82",
    0x10D63: "\U00010d83",
    0x10D64: "\U00010d84",
    0x10D65: "\U00010d85",
    0x16EA0: "\U00016ebb",
    0x16EA1: "\U00016ebc",
    0x16EA2: "\U00016ebd",
    0x16EA3: "\U00016ebe",
    0x16EA4: "\U00016ebf",
    0x16EA5: "\U00016ec0",
    0x16EA6: "\U00016ec1",
    0x16EA7: "\U00016ec2",
    0x16EA8: "\U00016ec3",
    0x16EA9: "\U00016ec4",
    0x16EAA: "\U00016ec5",
    0x16EAB: "\U00016ec6",
    0x16EAC: "\U00016ec7",
    0x16EAD: "\U00016ec8",
    0x16EAE: "\U00016ec9",
    0x16EAF: "\U00016eca",
    0x16EB0: "\U00016ecb",
    0x16EB1: "\U00016ecc",
    0x16EB2: "\U00016ecd",
    0x16EB3: "\U00016ece",
    0x16EB4: "\U00016ecf",
    0x16EB5: "\U00016ed0",
    0x16EB6: "\U00016ed1",
    0x16EB7: "\U00016ed2",
    0x16EB8: "\U00016ed3",
}
"""Lower case of letters newer than Python's Unicode."""
