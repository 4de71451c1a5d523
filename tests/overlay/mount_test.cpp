// SPDX-License-Identifier: MIT
// The contents of a mount, compared with the native files.

#include <dirent.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

#include <set>

#include "fuseovl/mount/kernel_mount.hpp"
#include "tests/overlay/overlay_support.hpp"

namespace heddle::test {
namespace {

std::set<std::string> names_below(const std::string& directory) {
  std::set<std::string> out;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    const auto name = fs::relative(entry.path(), directory).string();
    if (!name.starts_with(".heddle")) out.insert(name);
  }
  return out;
}

class MountTest : public ::testing::Test {
 protected:
  void SetUp() override {
    HEDDLE_NEEDS_FUSE();
    fs::permissions(dir_.path(), fs::perms(0755));
  }
  std::string add(const std::string& name, const std::string& content, unsigned mode = 0644) {
    return write_text_file(dir_ / ("src/" + name), content, mode);
  }
  /// Mounts `src` as two views; each directory equals `src`.
  Mount mount(std::vector<std::string> options = {}) {
    MapMaker maker;
    maker.add_directory("one", dir_ / "src");
    maker.add_directory("two", dir_ / "src");
    return Mount(maker.write(dir_ / "map"), dir_ / "mnt", std::move(options));
  }
  std::string native(const std::string& name) { return dir_ / ("src/" + name); }

  TestDir dir_;
};

TEST_F(MountTest, every_name_byte_and_attribute_equals_the_native_files) {
  add("empty.so", "");
  add("one byte", "x", 0600);
  add("page.so", random_bytes(4096, 1), 0755);
  add("big.so", random_bytes(3'000'001, 2), 0444);
  add("plugins/deep/er/p.so", random_bytes(10'000, 3), 04755);
  add("tab\tnewline\nquote\"back\\slash.so", "odd");
  add("b\xC3\xBC"
      "cher \xE2\x98\x83.so",
      "utf-8");
  add("not utf-8 \xFF\xFE.so", "bytes");
  add(std::string(255, 'n'), "long");
  for (int i = 0; i < 3000; ++i) add("many/lib" + std::to_string(i) + ".so", std::to_string(i));
  const auto m = mount();
  ASSERT_EQ(names_below(dir_ / "src"), names_below(m / "one"));
  ASSERT_EQ(names_below(dir_ / "src"), names_below(m / "two"));
  std::set<ino_t> inodes;
  for (const auto& name : names_below(dir_ / "src")) {
    struct stat a {
    }, b{};
    ASSERT_EQ(::lstat(native(name).c_str(), &a), 0);
    ASSERT_EQ(::lstat((m / ("one/" + name)).c_str(), &b), 0) << name;
    ASSERT_EQ(a.st_mode & S_IFMT, b.st_mode & S_IFMT);
    EXPECT_TRUE(inodes.insert(b.st_ino).second) << name;
    if (S_ISDIR(a.st_mode)) continue;
    EXPECT_EQ(a.st_mode, b.st_mode) << name;
    EXPECT_EQ(a.st_size, b.st_size);
    EXPECT_EQ(a.st_uid, b.st_uid);
    EXPECT_EQ(a.st_gid, b.st_gid);
    EXPECT_EQ(a.st_blocks, b.st_blocks);
    EXPECT_EQ(a.st_mtim.tv_sec, b.st_mtim.tv_sec);
    EXPECT_EQ(a.st_mtim.tv_nsec, b.st_mtim.tv_nsec);
    EXPECT_EQ(b.st_nlink, 2U);
    EXPECT_EQ(value_or_throw(read_file(native(name))),
              value_or_throw(read_file(m / ("two/" + name))))
        << name;
  }
}

TEST_F(MountTest, aliases_and_hard_links_are_one_inode) {
  const auto path = add("libx.so.1.2", "x");
  fs::create_symlink("libx.so.1.2", native("libx.so.1"));
  fs::create_hard_link(path, native("hard.so"));
  MapMaker maker;
  for (const char* name : {"libx.so", "libx.so.1", "libx.so.1.2"})
    maker.add_name("v", name, native("libx.so.1"));
  maker.add_name("v", "hard.so", native("hard.so"));
  const Mount m(maker.write(dir_ / "map"), dir_ / "mnt");
  struct stat a {
  }, b{};
  ASSERT_EQ(::stat((m / "libx.so").c_str(), &a), 0);
  for (const char* name : {"libx.so.1", "libx.so.1.2", "hard.so", "v/libx.so"}) {
    ASSERT_EQ(::stat((m / name).c_str(), &b), 0);
    EXPECT_EQ(a.st_ino, b.st_ino) << name;
  }
  EXPECT_EQ(a.st_nlink, 8U);
}

TEST_F(MountTest, directory_positions_can_be_restored) {
  for (int i = 0; i < 300; ++i) add("file" + std::to_string(i), "x");
  const auto m = mount();
  DIR* directory = ::opendir((m / "one").c_str());
  ASSERT_TRUE(directory);
  std::vector<std::pair<long, std::string>> entries;
  for (long at = ::telldir(directory); const dirent* entry = ::readdir(directory);
       at = ::telldir(directory))
    entries.emplace_back(at, entry->d_name);
  EXPECT_GE(entries.size(), 300U);
  for (std::size_t i = entries.size(); i-- > 0;) {
    ::seekdir(directory, entries[i].first);
    EXPECT_EQ(::readdir(directory)->d_name, entries[i].second);
  }
  ::rewinddir(directory);
  EXPECT_EQ(::readdir(directory)->d_name, entries[0].second);
  ::closedir(directory);
}

TEST_F(MountTest, errnos_of_reading_equal_a_native_read_only_directory) {
  add("file", "x");
  const auto m = mount();
  const auto open_errno = [&](const std::string& path, int flags) {
    const auto file = open_file(path, flags);
    return file ? 0 : file.error().code();
  };
  EXPECT_EQ(open_errno(m / "one/none", O_RDONLY), ENOENT);
  EXPECT_EQ(open_errno(m / "one/none", O_RDONLY), ENOENT) << "from the dentry cache";
  EXPECT_EQ(open_errno(m / "one/file/below", O_RDONLY), ENOTDIR);
  EXPECT_EQ(open_errno(m / "one/file", O_RDONLY | O_DIRECTORY), ENOTDIR);
  EXPECT_EQ(open_errno(m / ("one/" + std::string(256, 'x')), O_RDONLY), ENAMETOOLONG);
  char buffer[8];
  EXPECT_EQ(::readlink((m / "one/file").c_str(), buffer, sizeof(buffer)), -1);
  EXPECT_EQ(errno, EINVAL);
  const auto directory = value_or_throw(open_file(m / "one", O_RDONLY));
  EXPECT_EQ(::read(directory.get(), buffer, sizeof(buffer)), -1);
  EXPECT_EQ(errno, EISDIR);
  EXPECT_EQ(::getxattr((m / "one/file").c_str(), "user.x", buffer, 8), -1);
  EXPECT_EQ(errno, ENODATA);
  EXPECT_EQ(::listxattr((m / "one/file").c_str(), buffer, 8), -1);
  EXPECT_EQ(errno, ENOTSUP);
}

TEST_F(MountTest, every_attempt_to_write_gets_erofs) {
  add("file", "x", 0777);
  const auto m = mount();
  const std::string file = m / "one/file";
  const std::string fresh = m / "one/fresh";
  const auto is_erofs = [](auto rc) { return rc == -1 && errno == EROFS; };
  EXPECT_TRUE(is_erofs(::open(file.c_str(), O_WRONLY)));
  EXPECT_TRUE(is_erofs(::open(file.c_str(), O_RDWR)));
  EXPECT_TRUE(is_erofs(::open(file.c_str(), O_RDONLY | O_TRUNC)));
  EXPECT_TRUE(is_erofs(::open(fresh.c_str(), O_WRONLY | O_CREAT, 0644)));
  EXPECT_TRUE(is_erofs(::open((m / "one").c_str(), O_TMPFILE | O_RDWR, 0644)));
  EXPECT_TRUE(is_erofs(::mkdir(fresh.c_str(), 0755)));
  EXPECT_TRUE(is_erofs(::rmdir((m / "one").c_str())));
  EXPECT_TRUE(is_erofs(::unlink(file.c_str())));
  EXPECT_TRUE(is_erofs(::rename(file.c_str(), fresh.c_str())));
  EXPECT_TRUE(is_erofs(::link(file.c_str(), fresh.c_str())));
  EXPECT_TRUE(is_erofs(::symlink("x", fresh.c_str())));
  EXPECT_TRUE(is_erofs(::mknod(fresh.c_str(), S_IFREG | 0644, 0)));
  EXPECT_TRUE(is_erofs(::mkfifo(fresh.c_str(), 0644)));
  EXPECT_TRUE(is_erofs(::chmod(file.c_str(), 0600)));
  EXPECT_TRUE(is_erofs(::chown(file.c_str(), 1, 1)));
  EXPECT_TRUE(is_erofs(::truncate(file.c_str(), 0)));
  EXPECT_TRUE(is_erofs(::utimensat(AT_FDCWD, file.c_str(), nullptr, 0)));
  EXPECT_TRUE(is_erofs(::setxattr(file.c_str(), "user.x", "y", 1, 0)));
  EXPECT_TRUE(is_erofs(::removexattr(file.c_str(), "user.x")));
  EXPECT_TRUE(is_erofs(::access(file.c_str(), W_OK)));
  EXPECT_EQ(value_or_throw(read_file(file)), "x");
}

TEST_F(MountTest, mount_is_read_only_nosuid_nodev_and_shows_map_and_index) {
  add("file", "x");
  const auto m = mount();
  EXPECT_EQ(mounts_with(" " + m.path() + " ro,nosuid,nodev"), 1U);
  const auto entry = value_or_throw(find_mount(m.path()));
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->type, "fuse.heddle");
  EXPECT_EQ(entry->source, "heddle");
  struct statvfs status {};
  ASSERT_EQ(::statvfs(m.path().c_str(), &status), 0);
  EXPECT_TRUE(status.f_flag & ST_RDONLY);
  EXPECT_EQ(status.f_namemax, 255U);
  EXPECT_EQ(value_or_throw(read_file(m / ".heddle/map")), value_or_throw(read_file(dir_ / "map")));
  const auto index = value_or_throw(read_file(m / ".heddle/index"));
  EXPECT_EQ(index.size(), m.stat_number("index_bytes"));
  EXPECT_EQ(index.substr(0, 8), "HEDDLIDX");
}

TEST_F(MountTest, a_sparse_file_beyond_4_gib_reads_right_at_its_ends) {
  const std::string path = add("huge", "head");
  constexpr off_t kEnd = (INT64_C(5) << 30) + 12345;
  {
    const auto file = value_or_throw(open_file(path, O_RDWR));
    ASSERT_EQ(::pwrite(file.get(), "tail", 4, kEnd), 4);
  }
  MapMaker maker;
  maker.skip_hash();  // hashing 5 GiB takes seconds; a matching stamp suffices
  maker.add_name("v", "huge", path);
  const Mount m(maker.write(dir_ / "map"), dir_ / "mnt");
  const auto file = value_or_throw(open_file(m / "huge", O_RDONLY));
  char buffer[8] = {};
  EXPECT_EQ(::lseek(file.get(), 0, SEEK_END), kEnd + 4);
  EXPECT_EQ(::pread(file.get(), buffer, 8, kEnd), 4);
  EXPECT_EQ(std::string(buffer, 4), "tail");
  EXPECT_EQ(::pread(file.get(), buffer, 4, 0), 4);
  EXPECT_EQ(std::string(buffer, 4), "head");
  EXPECT_EQ(::pread(file.get(), buffer, 8, INT64_C(4) << 30), 8);
  EXPECT_EQ(std::string(buffer, 8), std::string(8, '\0'));
}

}  // namespace
}  // namespace heddle::test
