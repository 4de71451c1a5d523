// SPDX-License-Identifier: MIT
// Names for terminals, interpreters of scripts, /proc/PID/mountinfo.
#include <gtest/gtest.h>
#include <sys/sysmacros.h>

#include "base/escape.hpp"
#include "base/find_program.hpp"
#include "base/mounts.hpp"

namespace heddle {
namespace {

TEST(Escape, round_trips_every_byte) {
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  all += "\xC3\xA4 \xE2\x82\xAC \xF0\x9F\x98\x80 \xED\xA0\x80";  // a surrogate is not UTF-8
  EXPECT_EQ(unescape(escape_for_terminal(all)), all);
  EXPECT_TRUE(is_valid_utf8(escape_for_terminal(all)));
}

TEST(Escape, keeps_odd_names_on_one_line) {
  EXPECT_EQ(escape_for_terminal("a b\tc\nd\\e"), "a b\\tc\\nd\\\\e");
  EXPECT_EQ(escape_for_terminal("\x1b[31m"), "\\x1b[31m");
  EXPECT_EQ(escape_for_terminal("\xC3\xA4"), "\xC3\xA4");
  EXPECT_EQ(escape_for_terminal("\xC2\x80\xC2\x9B\x32J\xC2\x9F"),
            "\\xc2\\x80\\xc2\\x9b2J\\xc2\\x9f");
  EXPECT_EQ(escape_for_terminal("\xC2\xA0"), "\xC2\xA0");
  EXPECT_EQ(escape_for_terminal("\xC3"), "\\xc3");
}

TEST(Escape, decoder_refuses_invalid_escapes) {
  for (const char* text : {"\\", "\\q", "\\x1", "\\xZZ"}) EXPECT_FALSE(unescape(text)) << text;
}

TEST(ScriptInterpreter, is_the_first_word_of_the_shebang_line) {
  EXPECT_EQ(script_interpreter("#!/bin/sh\necho\n"), "/bin/sh");
  EXPECT_EQ(script_interpreter("#! \t/usr/bin/python3 -E\n"), "/usr/bin/python3");
  EXPECT_EQ(script_interpreter("#!/bin/sh"), "/bin/sh");
  EXPECT_EQ(script_interpreter(std::string_view("#!/bin/sh\0x\n", 12)), "/bin/sh");
}

TEST(ScriptInterpreter, is_empty_without_a_shebang_line) {
  for (const char* bytes : {"", "#", "#!", "#!  ", " #!/bin/sh\n", "\177ELF"})
    EXPECT_EQ(script_interpreter(bytes), "") << bytes;
  EXPECT_EQ(script_interpreter("#!" + std::string(kFirstLine, ' ') + "/bin/sh\n"), "");
}

TEST(EnvProgram, is_what_env_starts) {
  EXPECT_EQ(env_program("#!/usr/bin/env python3\nimport x\n"), "python3");
  EXPECT_EQ(env_program("#! /opt/env/bin/env -S python3 -u\n"), "python3");
  EXPECT_EQ(env_program("#!/usr/bin/env -Spython3 -u\n"), "python3");
  EXPECT_EQ(env_program("#!/usr/bin/env -S -i -u HOME A=b c=d /opt/python3\n"), "/opt/python3");
  EXPECT_EQ(env_program(std::string_view("#!/usr/bin/env a\0b\n", 19)), "a");
  for (const char* bytes : {"", "#!/bin/sh env\n", "#!/usr/bin/env", "#!/usr/bin/env -i\npython3\n",
                            "#!/usr/bin/environ python3\n", "/usr/bin/env python3\n"})
    EXPECT_EQ(env_program(bytes), "") << bytes;
}

TEST(Mountinfo, is_parsed_with_any_optional_fields) {
  const auto mounts = parse_mountinfo(
      R"(36 35 98:1 /root\040x /a\040b\134 rw,noatime shared:7 master:1 - ext4 /dev/sd\040a rw,x=1
40 36 0:52 / /m ro,nosuid - fuse.heddle heddle ro,user_id=0,group_id=5
)");
  ASSERT_EQ(mounts.size(), 2U);
  EXPECT_EQ(mounts[0].id, 36);
  EXPECT_EQ(mounts[0].device, makedev(98, 1));
  EXPECT_EQ(mounts[0].root, "/root x");
  EXPECT_EQ(mounts[0].point, "/a b\\");
  EXPECT_TRUE(mounts[0].shared);
  EXPECT_EQ(mounts[0].source, "/dev/sd a");
  EXPECT_EQ(mounts[1].type, "fuse.heddle");
  EXPECT_FALSE(mounts[1].shared);
  EXPECT_TRUE(mounts[1].has_option("user_id=0"));
  EXPECT_FALSE(mounts[1].has_option("group_id=50"));
}

}  // namespace
}  // namespace heddle
