// SPDX-License-Identifier: MIT

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <random>

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
  std::string cache_file() const { return path("cache/facts-loader"); }

  /// Files that have been there for long: a new file is not kept.
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

TEST_F(Cache, a_second_run_reads_no_file_and_starts_no_worker) {
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
    // Stamp, mode and hash come back too.
    const auto cached = value_or_throw(source.facts(files.front(), detail));
    CachedFacts pool(options());
    const auto read_now = value_or_throw(pool.facts(files.front(), detail));
    EXPECT_EQ(cached.hash, read_now.hash);
    EXPECT_EQ(cached.stamp, read_now.stamp);
    EXPECT_EQ(cached.mode, read_now.mode);
  }
}

TEST_F(Cache, a_file_changed_a_moment_ago_is_not_kept) {
  const auto library = build("liba.so", "int a;");
  {
    CachedFacts source(with_cache());
    ASSERT_TRUE(source.facts(library, FactsDetail::loader));
  }
  CachedFacts source(with_cache());
  ASSERT_TRUE(source.facts(library, FactsDetail::loader));
  EXPECT_EQ(source.counters().hits, 0U);
}

TEST_F(Cache, a_changed_file_is_never_taken_for_the_old_one) {
  const auto file = write("f", "one");
  const auto stamp = stamp_of(file);
  FileFacts facts{stamp, 0, hash_bytes("one"), {}};
  facts.elf.soname = "one";
  {
    FactsCache cache(path("cache"), FactsDetail::loader, kFarFuture);
    cache.add(facts, 7);
    EXPECT_TRUE(cache.find(stamp, 7));
    cache.save();
  }
  FactsCache cache(path("cache"), FactsDetail::loader, kFarFuture);
  ASSERT_TRUE(cache.find(stamp, 7));
  EXPECT_EQ(cache.find(stamp, 7)->elf.soname, "one");
  EXPECT_FALSE(cache.find(stamp, 8)) << "another file system";

  // Written in place, same size, the old mtime put back: the ctime tells.
  write("f", "two");
  const timespec times[2] = {{0, UTIME_OMIT},
                             {stamp.mtime_ns / 1000000000, stamp.mtime_ns % 1000000000}};
  ASSERT_EQ(::utimensat(AT_FDCWD, file.c_str(), times, 0), 0);
  const auto again = stamp_of(file);
  EXPECT_EQ(again.mtime_ns, stamp.mtime_ns);
  EXPECT_EQ(again.size, stamp.size);
  EXPECT_FALSE(cache.find(again, 7));
}

TEST_F(Cache, a_stamp_of_an_image_is_not_trusted) {
  const Fd memory(::memfd_create("x", MFD_CLOEXEC));
  FileSystems systems;
  FileStamp stamp{{1, 2}, 3, 1000000001, 2000000002};
  EXPECT_TRUE(systems.of(memory.get(), stamp));
  stamp.mtime_ns = stamp.ctime_ns;
  EXPECT_TRUE(systems.of(memory.get(), stamp)) << "just made";
  stamp.mtime_ns = stamp.ctime_ns = 5000000000;
  EXPECT_FALSE(systems.of(memory.get(), stamp)) << "one time for all, in whole seconds";
}

TEST_F(Cache, a_damaged_file_is_not_believed_and_replaced) {
  const auto files = old_files();
  std::vector<ElfFacts> right;
  {
    CachedFacts source(with_cache());
    right = read(source, files);
  }
  const auto good = value_or_throw(read_file(cache_file()));
  std::vector<std::string> corpus = {
      "", "x", std::string(4096, '\0'), std::string(100000, '\xff'), good + "x", good.substr(1)};
  for (std::size_t n = 1; n < 40; ++n) corpus.push_back(good.substr(0, good.size() * n / 40));
  std::mt19937 random(1);
  for (int i = 0; i < 60; ++i) {
    corpus.push_back(good);
    corpus.back()[random() % good.size()] ^= static_cast<char>(1 << random() % 8);
  }
  // The trailer's own fields: version, sizes.
  for (std::size_t back = 1; back <= 48; ++back) {
    corpus.push_back(good);
    corpus.back()[good.size() - back] ^= 1;
  }
  for (const auto& content : corpus) {
    write("cache/facts-loader", content);
    ::chmod(cache_file().c_str(), 0600);
    CachedFacts source(with_cache());
    EXPECT_TRUE(source.facts(files.front(), FactsDetail::loader));
    EXPECT_EQ(source.counters().hits, 0U);
  }
  CachedFacts source(with_cache());
  EXPECT_EQ(source.facts(files.front(), FactsDetail::loader)->elf, right.front());
  EXPECT_EQ(source.counters().hits, 1U) << "the last one has put a good one in its place";
}

TEST_F(Cache, what_others_can_write_is_not_believed) {
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
  fs::rename(cache_file(), path("elsewhere"));
  fs::create_symlink(path("elsewhere"), cache_file());
  EXPECT_EQ(hits(), 0U);
  fs::remove(cache_file());
  fs::create_directory(cache_file());
  EXPECT_EQ(hits(), 0U);
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  fs::remove_all(path("cache"));
  hits();
  ASSERT_EQ(::chown(cache_file().c_str(), 65534, 65534), 0);
  EXPECT_EQ(hits(), 0U);
}

TEST_F(Cache, without_a_place_for_it_everything_works) {
  const auto file = old_files().front();
  for (const char* dir : {"/dev/null/cache", "/proc/nothing", "/sys/cache"}) {
    auto with = with_cache();
    with.cache_dir = dir;
    CachedFacts source(with);
    EXPECT_TRUE(source.facts(file, FactsDetail::loader));
  }
}

TEST_F(Cache, its_directory_is_where_xdg_says) {
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

TEST_F(Cache, many_processes_at_once_all_get_right_answers_and_leave_a_good_cache) {
  const auto files = old_files();
  CachedFacts pool(options());
  std::vector<ElfFacts> right;
  for (const auto& file : files)
    right.push_back(value_or_throw(pool.facts(file, FactsDetail::loader)).elf);
  std::vector<Child> children;
  for (std::size_t i = 0; i < 24; ++i)
    children.push_back(value_or_throw(fork_child({}, [&, i] {
      // Each sees another half of the files, so that they have news for each other.
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
  for (const auto& entry : fs::directory_iterator(path("cache")))
    EXPECT_NE(entry.path().extension(), ".new");
}

TEST_F(Cache, a_limit_on_file_sizes_kills_nobody) {
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
  FileFacts facts;
  facts.elf.soname = std::string(4000, 's');
  for (std::uint64_t round = 0; round < 3; ++round) {
    FactsCache cache(path("cache"), FactsDetail::loader);
    for (std::uint64_t i = 0; i < 3000; ++i) {
      facts.stamp.id.ino = round * 3000 + i;
      cache.add(facts, 1);
    }
    cache.save();
    EXPECT_LT(fs::file_size(cache_file()), 40U << 20);
  }
  FactsCache cache(path("cache"), FactsDetail::loader);
  EXPECT_TRUE(cache.find(facts.stamp, 1)) << "the newest stay";
}

}  // namespace
}  // namespace heddle
