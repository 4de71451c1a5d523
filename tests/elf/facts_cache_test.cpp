// SPDX-License-Identifier: MIT

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "resolver/elf/cached_facts.hpp"
#include "tests/elf/elf_fixture.hpp"

namespace heddle {
namespace {

namespace fs = std::filesystem;

class Cache : public ElfTest {
 protected:
  FactsOptions with_cache() const {
    FactsOptions with = options();
    with.cache = CacheUse::read_write;
    with.cache_dir = path("cache");
    return with;
  }
  std::string cache_file() const {
    for (const auto& entry : fs::directory_iterator(path("cache"))) return entry.path();
    return {};
  }

  /// Old files: the cache omits new ones.
  static std::vector<std::string> old_files() {
    std::vector<std::string> files;
    for (const char* dir : {"/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"})
      if (fs::is_directory(dir))
        for (const auto& entry : fs::directory_iterator(dir))
          if (files.size() < 40 && entry.is_regular_file() && entry.file_size() < (1 << 20) &&
              entry.path().string().find(".so.") != std::string::npos)
            files.push_back(entry.path());
    return files;
  }
  static std::vector<ElfFacts> read(CachedFacts& source, const std::vector<std::string>& files,
                                    FactsDetail detail = FactsDetail::loader) {
    source.prefetch(files, detail);
    std::vector<ElfFacts> all;
    for (const auto& file : files) all.push_back(value_or_throw(source.facts(file, detail)).elf);
    return all;
  }
  static FileStamp stamp_of(const std::string& file) {
    struct stat status {};
    EXPECT_EQ(::stat(file.c_str(), &status), 0);
    return file_stamp(status);
  }
  static constexpr std::int64_t kFarFuture = std::int64_t{1} << 62;
};

TEST_F(Cache, spares_a_second_run_all_files_and_workers) {
  const auto files = old_files();
  for (const auto detail : {FactsDetail::loader, FactsDetail::symbols}) {
    std::vector<ElfFacts> first;
    {
      CachedFacts source(with_cache());
      first = read(source, files, detail);
      EXPECT_EQ(source.counters().parsed, files.size());
      EXPECT_EQ(source.counters().hits, 0U);
    }
    CachedFacts source(with_cache());
    EXPECT_EQ(read(source, files, detail), first);
    EXPECT_EQ(source.counters().hits, files.size());
    EXPECT_EQ(source.counters().started, 0U);
    // Stamp, mode and hash are cached too.
    const auto cached = value_or_throw(source.facts(files.front(), detail));
    CachedFacts pool(options());
    const auto read_now = value_or_throw(pool.facts(files.front(), detail));
    EXPECT_EQ(cached.hash, read_now.hash);
    EXPECT_EQ(cached.stamp, read_now.stamp);
    EXPECT_EQ(cached.mode, read_now.mode);
  }
}

TEST_F(Cache, omits_a_file_that_has_just_changed) {
  const auto library = build("liba.so", "int a;");
  {
    CachedFacts source(with_cache());
    ASSERT_TRUE(source.facts(library, FactsDetail::loader));
  }
  CachedFacts source(with_cache());
  ASSERT_TRUE(source.facts(library, FactsDetail::loader));
  EXPECT_EQ(source.counters().hits, 0U);
}

TEST_F(Cache, misses_a_file_that_was_changed_in_place) {
  const auto file = write("f", "one");
  const auto stamp = stamp_of(file);
  FileFacts facts{stamp, 0, hash_bytes("one"), {}};
  facts.elf.soname = "one";
  {
    FactsCache cache(path("cache"), kFarFuture);
    cache.add(facts, FactsDetail::loader, 7);
    EXPECT_TRUE(cache.find(stamp, FactsDetail::loader, 7));
    cache.save();
  }
  FactsCache cache(path("cache"), kFarFuture);
  ASSERT_TRUE(cache.find(stamp, FactsDetail::loader, 7));
  EXPECT_EQ(cache.find(stamp, FactsDetail::loader, 7)->elf.soname, "one");
  EXPECT_FALSE(cache.find(stamp, FactsDetail::symbols, 7));
  EXPECT_FALSE(cache.find(stamp, FactsDetail::loader, 8)) << "another file system";

  // Written in place with the same size and mtime: only the ctime differs.
  write("f", "two");
  const timespec times[2] = {{0, UTIME_OMIT},
                             {stamp.mtime_ns / 1000000000, stamp.mtime_ns % 1000000000}};
  ASSERT_EQ(::utimensat(AT_FDCWD, file.c_str(), times, 0), 0);
  const auto again = stamp_of(file);
  EXPECT_EQ(again.mtime_ns, stamp.mtime_ns);
  EXPECT_EQ(again.size, stamp.size);
  EXPECT_FALSE(cache.find(again, FactsDetail::loader, 7));
}

TEST_F(Cache, distrusts_stamps_of_images) {
  const Fd memory(::memfd_create("x", MFD_CLOEXEC));
  FileSystems systems;
  FileStamp stamp{{1, 2}, 3, 1000000001, 2000000002};
  EXPECT_TRUE(systems.of(memory.get(), stamp));
  stamp.mtime_ns = stamp.ctime_ns;
  EXPECT_TRUE(systems.of(memory.get(), stamp)) << "a new file";
  stamp.mtime_ns = stamp.ctime_ns = 5000000000;
  EXPECT_FALSE(systems.of(memory.get(), stamp)) << "equal times in whole seconds";
}

TEST_F(Cache, ignores_and_replaces_a_damaged_file) {
  const auto files = old_files();
  std::vector<ElfFacts> right;
  {
    CachedFacts source(with_cache());
    right = read(source, files);
  }
  const auto file = cache_file();
  const auto good = value_or_throw(read_file(file));
  std::vector<std::string> corpus = {"", "x", std::string(4096, '\0'), std::string(100000, '\xff'),
                                     good.substr(1)};
  for (std::size_t n = 1; n < 40; ++n) corpus.push_back(good.substr(0, good.size() * n / 40));
  const auto hits = [&] {
    CachedFacts source(with_cache());
    EXPECT_EQ(source.facts(files.front(), FactsDetail::loader)->elf, right.front());
    return source.counters().hits;
  };
  for (const auto& content : corpus) {
    write(fs::path(file).lexically_relative(path("")), content);
    (void)hits();
    EXPECT_EQ(hits(), 1U) << "it was made anew " << content.size();
  }
  // Each page, as a bad disk gives it.
  for (std::size_t at = 0; at < good.size(); at += 4096) {
    auto bad = good;
    std::fill_n(bad.begin() + static_cast<std::ptrdiff_t>(at),
                std::min<std::size_t>(4096, good.size() - at), '\xff');
    write(fs::path(file).lexically_relative(path("")), bad);
    (void)hits();
    EXPECT_EQ(hits(), 1U) << at;
  }
  // One byte of a record.
  auto damaged = good;
  for (auto at = damaged.find(*right.front().soname); at != damaged.npos;
       at = damaged.find(*right.front().soname, at + 1))
    damaged[at] ^= 1;
  write(fs::path(file).lexically_relative(path("")), damaged);
  EXPECT_EQ(hits(), 0U);
  EXPECT_EQ(hits(), 1U);
}

TEST_F(Cache, ignores_files_that_others_can_write) {
  const auto file = old_files().front();
  const auto hits = [&] {
    CachedFacts source(with_cache());
    EXPECT_TRUE(source.facts(file, FactsDetail::loader));
    return source.counters().hits;
  };
  hits();
  EXPECT_EQ(hits(), 1U);
  ASSERT_EQ(::chmod(cache_file().c_str(), 0660), 0);
  EXPECT_EQ(hits(), 0U);
  EXPECT_EQ(hits(), 1U);
  ASSERT_EQ(::chmod(path("cache").c_str(), 0770), 0);
  EXPECT_EQ(hits(), 0U);
  EXPECT_EQ(hits(), 0U);
  ASSERT_EQ(::chmod(path("cache").c_str(), 0700), 0);
  const auto file_name = cache_file();
  fs::rename(file_name, path("elsewhere"));
  fs::create_symlink(path("elsewhere"), file_name);
  EXPECT_EQ(hits(), 0U);
  fs::remove(file_name);
  fs::create_directory(file_name);
  EXPECT_EQ(hits(), 0U);
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  fs::remove_all(path("cache"));
  hits();
  ASSERT_EQ(::chown(cache_file().c_str(), 65534, 65534), 0);
  EXPECT_EQ(hits(), 0U);
}

TEST_F(Cache, is_optional) {
  const auto file = old_files().front();
  for (const char* dir : {"/dev/null/cache", "/proc/nothing", "/sys/cache"}) {
    auto with = with_cache();
    with.cache_dir = dir;
    CachedFacts source(with);
    EXPECT_TRUE(source.facts(file, FactsDetail::loader));
  }
}

TEST_F(Cache, follows_the_xdg_directories) {
  const auto is = [](const char* expected) { return default_cache_dir() == expected; };
  EXPECT_EQ(in_a_child([&] {
              ::setenv("XDG_CACHE_HOME", "/x", 1);
              ::setenv("HOME", "/h", 1);
              if (!is("/x/heddle")) return 1;
              ::setenv("XDG_CACHE_HOME", "relative", 1);
              if (!is("/h/.cache/heddle")) return 2;
              ::unsetenv("XDG_CACHE_HOME");
              if (!is("/h/.cache/heddle")) return 3;
              ::unsetenv("HOME");
              return is("") ? 0 : 4;
            }),
            0);
}

TEST_F(Cache, serves_concurrent_processes_correctly) {
  const auto files = old_files();
  CachedFacts pool(options());
  std::vector<ElfFacts> right;
  for (const auto& file : files)
    right.push_back(value_or_throw(pool.facts(file, FactsDetail::loader)).elf);
  std::vector<Child> children;
  for (std::size_t i = 0; i < 24; ++i)
    children.push_back(value_or_throw(fork_child({}, [&, i] {
      // Each reads another half of the files.
      std::vector<std::string> mine;
      std::vector<ElfFacts> expected;
      for (std::size_t n = i; n < i + files.size() / 2; ++n) {
        mine.push_back(files[n % files.size()]);
        expected.push_back(right[n % files.size()]);
      }
      CachedFacts source(with_cache());
      const bool same = read(source, mine) == expected;
      source.save();
      return same ? 0 : 1;
    })));
  for (auto& child : children) EXPECT_EQ(value_or_throw(child.wait()), 0);
  CachedFacts source(with_cache());
  EXPECT_EQ(read(source, files), right);
  EXPECT_GT(source.counters().hits, 0U);
}

TEST_F(Cache, survives_a_limit_of_file_sizes) {
  EXPECT_EQ(in_a_child([&] {
              const rlimit none{1, 1};
              ::setrlimit(RLIMIT_FSIZE, &none);
              CachedFacts source(with_cache());
              read(source, old_files());
              source.save();
              return 0;
            }),
            0);
}

TEST_F(Cache, it_does_not_grow_without_end) {
  constexpr std::size_t kLimit = std::size_t{1} << 20;
  auto records = store::RecordCache::open(path("records"), kLimit);
  ASSERT_TRUE(records);
  for (int i = 0; i < 3000; ++i) {
    const auto key = std::to_string(i);
    ASSERT_TRUE(records->add({{key, std::string(4000, 's')}}));
    ASSERT_TRUE(records->find(key));
  }
  EXPECT_FALSE(records->find("0")) << "the newest stay";
  EXPECT_LE(fs::file_size(path("records")), kLimit);
  EXPECT_FALSE(records->add({{"large", std::string(kLimit, 's')}}));
  ASSERT_TRUE(records->add({{"small", "s"}}));
  EXPECT_EQ(records->find("small"), "s");
}

TEST_F(Cache, a_stopped_writer_holds_nobody_up) {
  auto records = store::RecordCache::open(path("records"), std::size_t{1} << 20);
  const Fd other(::open(path("records").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
  EXPECT_FALSE(records->add({{"key", "value"}}));
  ASSERT_EQ(::flock(other.get(), LOCK_UN), 0);
  EXPECT_TRUE(records->add({{"key", "value"}}));
}

TEST_F(Cache, a_record_that_a_killed_process_has_begun_is_replaced) {
  auto records = store::RecordCache::open(path("records"), std::size_t{1} << 20);
  ASSERT_TRUE(records->add({{"first", "1"}, {"second", std::string(1000, '2')}}));
  fs::resize_file(path("records"), fs::file_size(path("records")) - 1);
  auto other = store::RecordCache::open(path("records"), std::size_t{1} << 20);
  EXPECT_EQ(other->find("first"), "1");
  EXPECT_FALSE(other->find("second"));
  ASSERT_TRUE(other->add({{"third", "3"}}));
  EXPECT_FALSE(records->find("third"));
  ASSERT_TRUE(records->add({{"fourth", "4"}}));
  EXPECT_EQ(records->find("third"), "3") << "of another process";
  other = store::RecordCache::open(path("records"), std::size_t{1} << 20);
  EXPECT_EQ(other->find("first"), "1");
  EXPECT_EQ(other->find("third"), "3");
  EXPECT_EQ(other->find("fourth"), "4");
}

}  // namespace
}  // namespace heddle
