// SPDX-License-Identifier: MIT
// The bundle's format, its reader, and the cache of decoded frames.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <functional>
#include <optional>
#include <random>
#include <thread>

#include "base/child.hpp"
#include "fuseovl/files/bundle_frames.hpp"
#include "ship/bundle/bundle_file.hpp"
#include "ship/bundle/frame.hpp"
#include "tests/bundle/bundle_support.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {
namespace {

/// A copy in memory, for changes.
Fd copy_of(const std::string& bytes) {
  Fd out(::memfd_create("bundle", MFD_CLOEXEC));
  value_or_throw(write_all(out.get(), bytes, "memfd"));
  return out;
}

class Bundle : public ::testing::Test {
 protected:
  /// The files are named so that their order in the stream is not that of the map.
  void pack(const std::vector<std::size_t>& sizes) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      files_.push_back(dir_ / ("f" + std::to_string(900 - i) + ".so"));
      write_text_file(files_.back(), some_bytes(sizes[i], i));
      stream_ += some_bytes(sizes[i], i);
    }
    summary_ = pack_files(files_, path_);
    bytes_ = value_or_throw(read_file(path_));
  }

  BundleIndex index() { return value_or_throw(BundleFile::read(open().get(), path_)).index; }
  Fd open() { return value_or_throw(open_file(path_, O_RDWR)); }

  std::unique_ptr<BundleFrames> frames(std::size_t room = BundleFrames::kFrames) {
    std::vector<heddle::BundleSource> sources;
    sources.push_back({open(), path_});
    return std::make_unique<BundleFrames>(std::move(sources),
                                          std::make_shared<BundleIndex>(index()), room);
  }

  /// What the frames have at a place; nullopt: an error.
  static std::optional<std::string> read(BundleFrames& frames, std::uint64_t place,
                                         std::size_t size) {
    std::string out(size, '?');
    if (const auto done = frames.read(place, out, MayBlock::yes); !done) {
      EXPECT_EQ(done.error(), EIO);
      return {};
    }
    return out;
  }

  /// Damages the stored bytes of a frame.
  void damage(std::size_t number) {
    const auto frame = index().frames[number];
    const char byte = static_cast<char>(~bytes_[frame.offset + frame.size / 2]);
    ASSERT_EQ(::pwrite(open().get(), &byte, 1, static_cast<off_t>(frame.offset + frame.size / 2)),
              1);
  }

  const TestDir dir_;
  const std::string path_ = dir_ / "app.bundle";
  std::vector<std::string> files_;
  std::string stream_;
  std::string bytes_;
  BundleSummary summary_;
};

TEST_F(Bundle, gives_back_its_map_and_every_byte_of_its_files) {
  pack({3'000'000, 1, 0, 70'000, 1 << 20, 5});
  const auto file = open();
  const auto bundle = value_or_throw(BundleFile::read(file.get(), path_, &summary_.id));
  EXPECT_EQ(bundle.map, value_or_throw(read_file(path_ + ".map")));
  EXPECT_EQ(bundle.index.stream_size, stream_.size());
  EXPECT_EQ(summary_.file_size, bytes_.size());
  EXPECT_LT(bytes_.size(), stream_.size());
  std::string all;
  for (std::size_t i = 0; i < bundle.index.frames.size(); ++i)
    all += value_or_throw(read_frame(file.get(), path_, bundle.index, i));
  EXPECT_EQ(all, stream_);
  const auto reader = value_or_throw(MapReader::open(path_));
  EXPECT_EQ(reader.id(), summary_.id);
  const auto content = value_or_throw(reader.read_all());
  for (ObjectId id = 0; id < content.objects.size(); ++id) {
    const auto& object = content.objects[id];
    EXPECT_EQ(hash_bytes(all.substr(reader.bundle()->objects[id], object.stamp.size)), object.hash);
  }
}

TEST_F(Bundle, equal_input_gives_equal_bytes) {
  pack({2'500'000, 100'000, 3'000'000});
  pack_files(files_, dir_ / "again");
  EXPECT_EQ(value_or_throw(read_file(dir_ / "again")), bytes_);
}

TEST_F(Bundle, of_no_files_is_a_map) {
  pack({});
  EXPECT_EQ(index().frames.size(), 0U);
  EXPECT_EQ(value_or_throw(MapReader::open(path_)).id(), summary_.id);
  std::string byte(1, '?');
  EXPECT_FALSE(frames()->read(0, byte, MayBlock::yes));
}

TEST_F(Bundle, a_file_that_has_changed_is_an_error_that_names_it_and_leaves_no_file) {
  pack({100'000, 2'000'000});
  auto content = map_of(files_, {});
  BundleInput input;
  for (auto& object : content.objects) input.files.push_back({object.path, object.stamp});
  write_text_file(files_[0], some_bytes(100'000, 99));
  const auto written = write_bundle(std::move(input), dir_ / "new.bundle");
  ASSERT_FALSE(written);
  EXPECT_THAT(written.error().message(), HasSubstr(files_[0]));
  for (const auto& entry : std::filesystem::directory_iterator(dir_.path()))
    EXPECT_THAT(entry.path().string(), ::testing::Not(HasSubstr("new.bundle")));
}

/// Reads all of a bundle in memory. True: it was accepted, and gave the right bytes or errors.
bool reads_right(int file, const std::string& stream, const ContentHash& id,
                 std::size_t& bad_frames) {
  const auto reader = MapReader::open(file, "bundle");
  if (!reader || !reader->bundle()) return false;
  EXPECT_EQ(reader->id(), id);
  EXPECT_TRUE(reader->read_all());
  for (std::size_t i = 0; i < reader->bundle()->frames.size(); ++i) {
    const auto piece = read_frame(file, "bundle", *reader->bundle(), i);
    EXPECT_TRUE(!piece || *piece == stream.substr(i * kFrameSize, kFrameSize)) << "frame " << i;
    bad_frames += !piece;
  }
  return true;
}

TEST_F(Bundle, with_any_byte_flipped_is_refused_or_loses_one_frame) {
  pack({5'000, 400, 7});
  const auto copy = copy_of(bytes_);
  std::size_t refused = 0;
  std::size_t lost = 0;
  for (std::size_t at = 0; at < bytes_.size(); ++at) {
    const char byte = static_cast<char>(bytes_[at] ^ (1 << at % 8));
    ASSERT_EQ(::pwrite(copy.get(), &byte, 1, static_cast<off_t>(at)), 1);
    std::size_t bad = 0;
    if (!reads_right(copy.get(), stream_, summary_.id, bad))
      ++refused;
    else
      EXPECT_EQ(bad, 1U) << "byte " << at;
    lost += bad;
    ASSERT_EQ(::pwrite(copy.get(), &bytes_[at], 1, static_cast<off_t>(at)), 1);
  }
  EXPECT_EQ(lost, index().frames[0].size);
  EXPECT_EQ(refused + lost, bytes_.size());
}

TEST_F(Bundle, with_random_bytes_changed_gives_the_right_bytes_or_none) {
  pack({6'000'000, 1'500'000, 300'000});
  std::mt19937_64 random(17);
  for (int round = 0; round < 60; ++round) {
    auto bytes = bytes_;
    for (std::size_t n = 1 + random() % 4; n > 0; --n)
      bytes[random() % bytes.size()] ^= static_cast<char>(1 + random() % 255);
    std::size_t bad = 0;
    reads_right(copy_of(bytes).get(), stream_, summary_.id, bad);
  }
}

TEST_F(Bundle, cut_at_any_length_is_refused) {
  pack({5'000, 400});
  const auto copy = copy_of(bytes_);
  for (std::size_t size = bytes_.size(); size-- > 0;) {
    ASSERT_EQ(::ftruncate(copy.get(), static_cast<off_t>(size)), 0);
    EXPECT_FALSE(MapReader::open(copy.get(), "bundle")) << size;
  }
}

TEST_F(Bundle, with_bytes_appended_or_of_another_id_is_refused) {
  pack({5'000});
  EXPECT_FALSE(MapReader::open(copy_of(bytes_ + '\0').get(), "bundle"));
  ContentHash other = summary_.id;
  other.bytes[31] ^= 1;
  const auto read = BundleFile::read(open().get(), path_, &other);
  ASSERT_FALSE(read);
  EXPECT_THAT(read.error().message(), HasSubstr("not the requested bundle"));
}

TEST_F(Bundle, of_a_later_version_says_so) {
  pack({10});
  bytes_[8] = 2;
  const auto read = BundleFile::read(copy_of(bytes_).get(), "a.bundle");
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ENOTSUP);
  EXPECT_THAT(read.error().message(), HasSubstr("version 2, this program reads 1"));
}

/// An index with the right hash, made by another user.
std::string forged(const BundleIndex& index, const std::string& map, const std::string& frames) {
  Encoder coder;
  coder(index, map);
  const auto bytes = coder.take();
  Encoder end;
  end(bundle_format::Footer{0, bundle_format::kHeadSize + frames.size(), bytes.size(),
                            hash_bytes(bytes)});
  return bundle_format::head() + frames + bytes + std::string(bundle_format::kFooterMagic) +
         end.take();
}

TEST_F(Bundle, whose_index_contradicts_itself_is_refused) {
  pack({1'500'000, 5'000});
  const auto good = value_or_throw(BundleFile::read(open().get(), path_));
  std::uint64_t end = 0;
  for (const auto& frame : good.index.frames) end = frame.offset + frame.size;
  const auto frames = bytes_.substr(bundle_format::kHeadSize, end - bundle_format::kHeadSize);
  const auto accepts = [&](const BundleIndex& index) {
    const auto reader = MapReader::open(copy_of(forged(index, good.map, frames)).get(), "forged");
    return reader && reader->read_all();
  };
  ASSERT_TRUE(accepts(good.index));
  const std::vector<std::function<void(BundleIndex&)>> changes = {
      [](auto& i) { i.frames[1].offset = i.frames[0].offset; },
      [](auto& i) { i.frames[1].size += 1; },
      [](auto& i) { i.frames[0].size = 0; },
      [](auto& i) { i.frames.pop_back(); },
      [](auto& i) { i.frames.push_back(i.frames[0]); },
      [](auto& i) { i.stream_size = UINT64_MAX; },
      [](auto& i) { i.stream_size += kFrameSize; },
      [](auto& i) { i.objects[0] = i.stream_size + 1; },
      [](auto& i) { i.objects[0] = i.stream_size - 1; },
      [](auto& i) { i.objects.pop_back(); },
      [](auto& i) { i.trees.emplace_back(); },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    auto index = good.index;
    changes[i](index);
    EXPECT_FALSE(accepts(index)) << "change " << i;
  }
}

TEST_F(Bundle, a_frame_that_is_no_zstd_or_of_another_length_is_an_error) {
  pack({1'500'000});
  auto index = this->index();
  for (const std::string& stored :
       {std::string("no zstd"), bytes_.substr(index.frames[0].offset, index.frames[0].size)}) {
    index.frames[1].size = static_cast<std::uint32_t>(stored.size());
    index.frames[1].hash = hash_bytes(stored);  // the hash is forged too
    std::string piece(index.frame_length(1), '\0');
    EXPECT_FALSE(decode_frame(index.frames[1], stored, piece));
  }
}

TEST_F(Bundle, frames_are_decoded_once_for_many_readers) {
  pack({8'000'000, 9'000'000, 3'333'333});
  const auto frames = this->frames();
  std::vector<std::jthread> threads;
  for (unsigned seed = 0; seed < 8; ++seed)
    threads.emplace_back([&, seed] {
      std::mt19937_64 random(seed);
      for (int i = 0; i < 300; ++i) {
        const auto place = random() % stream_.size();
        const auto size = std::min<std::size_t>(random() % 200'000, stream_.size() - place);
        ASSERT_EQ(read(*frames, place, size), stream_.substr(place, size));
      }
    });
  threads.clear();
  EXPECT_EQ(frames->counters().decoded, index().frames.size());
  EXPECT_EQ(frames->counters().again, 0U);
  EXPECT_EQ(frames->counters().bad, 0U);
}

TEST_F(Bundle, a_small_cache_decodes_again_and_counts_it) {
  pack({8'000'000});
  const auto frames = this->frames(2);
  for (int round = 0; round < 2; ++round)
    for (std::size_t i = 0; i < index().frames.size(); ++i)
      ASSERT_EQ(read(*frames, i * kFrameSize, 100), stream_.substr(i * kFrameSize, 100));
  EXPECT_GE(frames->counters().again, index().frames.size() - 2);
}

/// All of the stream in pieces that do not follow each other: each frame is used many times.
std::vector<std::uint64_t> scattered(std::uint64_t size, std::size_t piece) {
  std::vector<std::uint64_t> places;
  for (std::uint64_t place = 0; place < size; place += piece) places.push_back(place);
  std::ranges::shuffle(places, std::mt19937_64(3));
  return places;
}

TEST_F(Bundle, frames_are_decoded_once_in_any_order) {
  pack(std::vector<std::size_t>(90, 1'200'000));
  const auto frames = this->frames(200);
  frames->start();
  ASSERT_GT(index().frames.size(), 2 * BundleFrames::kFrames);
  for (const auto place : scattered(stream_.size(), 100'000)) {
    const auto size = std::min<std::size_t>(100'000, stream_.size() - place);
    ASSERT_EQ(read(*frames, place, size), stream_.substr(place, size));
  }
  EXPECT_EQ(frames->counters().decoded, index().frames.size());
  EXPECT_EQ(frames->counters().again, 0U);
}

TEST_F(Bundle, a_frame_of_a_read_that_was_refused_is_kept) {
  pack(std::vector<std::size_t>(60, 1'100'000));
  const auto frames = this->frames(200);
  ASSERT_TRUE(read(*frames, 0, 10));
  std::string out(600'010, '?');  // its end is in the next frame
  for (int i = 0; i < 2; ++i)
    EXPECT_FALSE(frames->read(kFrameSize - 600'000, out, MayBlock::no)) << "not decoded yet";
  for (std::size_t i = 1; i < index().frames.size(); ++i)
    ASSERT_TRUE(read(*frames, i * kFrameSize, 10));
  ASSERT_TRUE(read(*frames, 0, 10));
  EXPECT_EQ(frames->counters().again, 0U);
}

/// The sum of this process's lines of that name in /proc/self/smaps, in bytes.
std::uint64_t memory_of(const std::string& name) {
  std::uint64_t out = 0;
  std::ifstream lines("/proc/self/smaps");
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(name + ":")) out += std::stoull(line.substr(name.size() + 1)) << 10;
  return out;
}

TEST_F(Bundle, the_cache_is_bounded_and_the_kernel_may_take_all_but_some_frames) {
  constexpr std::size_t kRoom = 60;
  constexpr std::size_t kSlack = std::size_t{8} << 20;  // the heap, and what is being read
  pack(std::vector<std::size_t>(80, 1'100'000));
  const auto frames = this->frames(kRoom);
  const auto count = index().frames.size();
  const auto before = memory_of("Anonymous");
  for (std::size_t i = 0; i < count; ++i)
    ASSERT_EQ(read(*frames, i * kFrameSize, 100), stream_.substr(i * kFrameSize, 100));
  const auto lazy = memory_of("LazyFree");
  const auto grown = memory_of("Anonymous") - before;
  EXPECT_LE(grown, kRoom * kFrameSize + kSlack);
  EXPECT_LE(grown - lazy, BundleFrames::kFrames * kFrameSize + kSlack);
  EXPECT_EQ(frames->counters().again, 0U);
  for (std::size_t i = count - 1; i < count; --i)
    ASSERT_EQ(read(*frames, i * kFrameSize + 5, 100), stream_.substr(i * kFrameSize + 5, 100));
  EXPECT_LE(frames->counters().again, count - kRoom + 1);  // what the bound has cost
  EXPECT_LE(memory_of("Anonymous") - before, kRoom * kFrameSize + kSlack);
  EXPECT_LE(memory_of("Anonymous") - before - memory_of("LazyFree"),
            BundleFrames::kFrames * kFrameSize + kSlack);
}

TEST_F(Bundle, frames_whose_memory_the_kernel_took_are_decoded_again) {
  pack(std::vector<std::size_t>(60, 1'100'000));
  const auto frames = this->frames(200);
  const auto count = index().frames.size();
  for (std::size_t i = 0; i < count; ++i) ASSERT_TRUE(read(*frames, i * kFrameSize, 100));
  if (::madvise(nullptr, 0, MADV_PAGEOUT) != 0) HEDDLE_SKIP("no MADV_PAGEOUT before Linux 5.4");
  // What the kernel does when it needs memory.
  std::ifstream lines("/proc/self/smaps");
  std::uint64_t from = 0, to = 0;
  for (std::string line; std::getline(lines, line);) {
    std::uint64_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) from = begin, to = end;
    if (line.starts_with("LazyFree:") && line.find(" 0 kB") == line.npos)
      ::madvise(reinterpret_cast<void*>(from), to - from, MADV_PAGEOUT);
  }
  ASSERT_LT(memory_of("LazyFree"), std::uint64_t{1} << 20);
  for (std::size_t i = 0; i < count; ++i) {
    const auto size = std::min(kFrameSize, stream_.size() - i * kFrameSize);
    ASSERT_EQ(read(*frames, i * kFrameSize, size), stream_.substr(i * kFrameSize, size)) << i;
  }
  EXPECT_EQ(frames->counters().again, count - BundleFrames::kFrames);
}

TEST_F(Bundle, frames_are_right_while_the_kernel_takes_their_memory) {
  if (::madvise(nullptr, 0, MADV_PAGEOUT) != 0) HEDDLE_SKIP("no MADV_PAGEOUT before Linux 5.4");
  pack(std::vector<std::size_t>(60, 1'100'000));
  const auto frames = this->frames(200);
  std::atomic<bool> ends = false;
  std::jthread taker([&] {
    while (!ends) {
      std::ifstream lines("/proc/self/maps");
      for (std::string line; std::getline(lines, line);) {
        std::uint64_t begin = 0, end = 0;
        if (line.ends_with(" 0 ") && std::sscanf(line.c_str(), "%lx-%lx rw-p", &begin, &end) == 2)
          ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_PAGEOUT);
      }
    }
  });
  std::vector<std::jthread> threads;
  for (unsigned seed = 0; seed < 4; ++seed)
    threads.emplace_back([&, seed] {
      std::mt19937_64 random(seed);
      for (int i = 0; i < 1500; ++i) {
        const auto place = random() % stream_.size();
        const auto size = std::min<std::size_t>(random() % 200'000, stream_.size() - place);
        ASSERT_EQ(read(*frames, place, size), stream_.substr(place, size));
      }
    });
  threads.clear();
  ends = true;
  EXPECT_GT(frames->counters().again, 0U);
}

TEST_F(Bundle, a_read_that_must_not_block_takes_only_what_is_decoded) {
  pack({3'000'000});
  const auto frames = this->frames();
  std::string out(10, '?');
  const auto there = [&](std::uint64_t place) {
    const auto done = frames->read(place, out, MayBlock::no);
    return done ? 0 : done.error();
  };
  EXPECT_EQ(there(5), EAGAIN);
  EXPECT_TRUE(read(*frames, 5, 10));
  EXPECT_EQ(there(5), 0);
  EXPECT_EQ(out, stream_.substr(5, 10));
  EXPECT_EQ(there(kFrameSize - 5), EAGAIN);  // its second half is in the next frame
  EXPECT_EQ(there(stream_.size() - 5), EIO);
  EXPECT_EQ(there(UINT64_MAX - 3), EIO);
}

TEST_F(Bundle, reading_in_order_is_decoded_ahead_by_large_reads) {
  pack({60'000'000});
  const auto frames = this->frames();
  frames->start();
  for (std::size_t place = 0; place < stream_.size(); place += 131072) {
    const auto size = std::min<std::size_t>(131072, stream_.size() - place);
    ASSERT_EQ(read(*frames, place, size), stream_.substr(place, size));
  }
  const auto& counters = frames->counters();
  EXPECT_EQ(counters.decoded, index().frames.size());
  EXPECT_EQ(counters.again, 0U);
  EXPECT_GE(counters.bytes / counters.reads, 1U << 20);
}

TEST_F(Bundle, a_damaged_frame_is_an_error_for_its_bytes_alone) {
  pack({5'000'000});
  const auto frames = this->frames();
  damage(2);
  EXPECT_EQ(read(*frames, 2 * kFrameSize - 10, 20), std::nullopt);
  EXPECT_EQ(read(*frames, 2 * kFrameSize - 20, 20), stream_.substr(2 * kFrameSize - 20, 20));
  EXPECT_EQ(read(*frames, 3 * kFrameSize, 20), stream_.substr(3 * kFrameSize, 20));
  EXPECT_EQ(frames->counters().bad, 1U);
}

TEST_F(Bundle, a_frame_that_all_sources_have_damaged_is_read_once) {
  pack({5'000'000});
  const auto frames = this->frames();
  damage(2);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(read(*frames, 2 * kFrameSize + 10, 20), std::nullopt);
  EXPECT_EQ(frames->counters().reads, 1U);
  EXPECT_EQ(frames->counters().bad, 1U);
}

TEST_F(Bundle, readers_without_memory_fail_and_none_waits) {
  pack({5'000'000});
  const auto frames = this->frames();
  auto child = value_or_throw(fork_child({}, [&]() -> int {
    std::string out(20, '?');
    std::vector<std::unique_ptr<char[]>> taken;  // what malloc() has kept
    taken.reserve(100'000);
    rlimit limit{};
    ::getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = 1;
    ::setrlimit(RLIMIT_AS, &limit);
    try {
      for (;;) taken.push_back(std::make_unique<char[]>(128 << 10));
    } catch (const std::bad_alloc&) {
    }
    for (int i = 0; i < 2; ++i) try {
        (void)frames->read(0, out, MayBlock::yes);
        return 2;
      } catch (const std::bad_alloc&) {
      }
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_AS, &limit);
    return frames->read(0, out, MayBlock::yes) && out == stream_.substr(0, 20) ? 0 : 3;
  }));
  const auto ended = child.wait_for(std::chrono::seconds(20));
  EXPECT_EQ(ended ? ended->value_or(-1) : -2, 0);
}

TEST_F(Bundle, a_damaged_frame_comes_from_the_next_source) {
  pack({5'000'000});
  write_text_file(dir_ / "copy", bytes_);
  std::vector<heddle::BundleSource> sources;
  sources.push_back({open(), path_});
  sources.push_back({value_or_throw(open_file(dir_ / "copy", O_RDONLY)), dir_ / "copy"});
  BundleFrames frames(std::move(sources), std::make_shared<BundleIndex>(index()));
  ASSERT_EQ(::truncate(path_.c_str(), 1000), 0);
  EXPECT_EQ(read(frames, 0, stream_.size()), stream_);
  EXPECT_EQ(frames.counters().bad, 0U);
}

TEST_F(Bundle, cut_while_it_is_read_gives_the_right_bytes_or_none) {
  pack({30'000'000});
  const auto frames = this->frames(4);
  frames->start();
  std::mt19937_64 random(3);
  for (std::size_t size = bytes_.size(); size > 100'000; size = size * 2 / 3) {
    ASSERT_EQ(::truncate(path_.c_str(), static_cast<off_t>(size)), 0);
    for (int i = 0; i < 20; ++i) {
      const auto place = random() % (stream_.size() - 1000);
      const auto got = read(*frames, place, 1000);
      EXPECT_TRUE(!got || *got == stream_.substr(place, 1000));
    }
  }
  EXPECT_GT(frames->counters().bad, 0U);
}

}  // namespace
}  // namespace heddle::test
