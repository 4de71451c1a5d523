// SPDX-License-Identifier: MIT
#include "base/script_interpreter.hpp"

#include <gtest/gtest.h>

namespace heddle {
namespace {

TEST(ScriptInterpreter, is_the_first_word_behind_the_mark) {
  EXPECT_EQ(script_interpreter("#!/bin/sh\necho\n"), "/bin/sh");
  EXPECT_EQ(script_interpreter("#! \t/usr/bin/python3 -E\n"), "/usr/bin/python3");
  EXPECT_EQ(script_interpreter("#!/bin/sh"), "/bin/sh");
  EXPECT_EQ(script_interpreter(std::string_view("#!/bin/sh\0x\n", 12)), "/bin/sh");
}

TEST(ScriptInterpreter, is_none_of_what_is_no_script) {
  for (const char* bytes : {"", "#", "#!", "#!  ", " #!/bin/sh\n", "\177ELF"})
    EXPECT_EQ(script_interpreter(bytes), "") << bytes;
  EXPECT_EQ(script_interpreter("#!" + std::string(kFirstLine, ' ') + "/bin/sh\n"), "");
}

}  // namespace
}  // namespace heddle
