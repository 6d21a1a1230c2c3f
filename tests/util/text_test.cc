// What others wrote, in messages.
#include "util/text.h"

#include <gtest/gtest.h>

namespace strata {
namespace {

TEST(Text, ControlCharactersAreEscaped) {
  EXPECT_EQ(shown("plain, \xc3\xa9t\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"),
            "plain, \xc3\xa9t\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(shown("a\x1b[31mb\n\tc\x7f"), "a\\x1b[31mb\\n\\tc\\x7f");
  EXPECT_EQ(shown(std::string("\0", 1)), "\\x00");
  EXPECT_EQ(shown("\xc2\x9b"), "\\xc2\\x9b");           // a control character in two bytes
  EXPECT_EQ(shown("\xe2\x80\xae"), "\\xe2\\x80\\xae");  // would turn the text around
  for (const char* bad : {"\xff", "\xc3", "\xe2\x82", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x80"})
    EXPECT_EQ(shown(bad).substr(0, 2), "\\x") << shown(bad);
}

TEST(Text, Utf8) {
  for (const char* text : {"", "a\n\x7f", "caf\xc3\xa9", "\xc2\x80", "\xe2\x80\xae", "\xf4\x8f\xbf\xbf"})
    EXPECT_TRUE(is_utf8(text)) << shown(text);
  for (const char* text :
       {"caf\xe9", "caf\xc3", "\x80", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80"})
    EXPECT_FALSE(is_utf8(text)) << shown(text);
}

TEST(Text, LongTextsAreCut) {
  EXPECT_EQ(shown(std::string(40, 'x')), std::string(40, 'x'));
  EXPECT_EQ(shown(std::string(41, 'x')), std::string(20, 'x') + "... (41 characters)");
  EXPECT_EQ(shown_list({"a", "b\n"}), "a, b\\n");
  EXPECT_EQ(shown_list(std::vector<std::string>(25, "a"), 3), "a, a, a and 22 others");
  EXPECT_EQ(shown_message("first\nsecond\x1b"), "first\nsecond\\x1b");
  EXPECT_LT(shown_message(std::string(1000000, 'x')).size(), 5000U);
}

}  // namespace
}  // namespace strata
