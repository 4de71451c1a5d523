// SPDX-License-Identifier: MIT
//
// The overlay's side of the FUSE protocol without a kernel: a regular INIT, then requests with any
// operation, inode and arguments. As libfuse relies on it, arguments are complete and names are
// terminated. Each request must be answered once.
#include <fcntl.h>
#include <linux/fuse.h>

#include <chrono>
#include <thread>

#include "base/temp_dir.hpp"
#include "fuseovl/overlay/load.hpp"
#include "fuseovl/overlay/overlay.hpp"
#include "fuseovl/session/session.hpp"
#include "resolver/map/map_reader.hpp"
#include "tests/fuzz/target.hpp"

/// libfuse leaks an interrupt without a request (lib/fuse_lowlevel.c, fuse_session_destroy()).
extern "C" const char* __lsan_default_suppressions() { return "leak:libfuse3.so"; }

namespace heddle::fuzz {
namespace {

constexpr std::size_t kRoom = std::size_t{1} << 16;  ///< of a request, filled up with zeros

/// Three files, one of them below a plugin directory, and a tree that has them.
class ServedDirectory {
 public:
  ServedDirectory() {
    MapContent map;
    map.views = {{"v", {}}};
    for (const char* name : {"liba.so", "libb.so", "plugins"}) add(map, name);
    map.views[0].names = {{"liba.so", 0}, {"libb.so", 1}, {"plugins/p.so", 2}};
    map.generated = {{".heddle/ld.so.cache", "bytes"}};
    add_tree(map);
    const std::string path = dir_.path() + "/map";
    value_or_throw(write_map(map, path));
    LoadOptions options;
    options.map_path = path;
    options.mount_point = "/m";
    std::vector<Drift> drifts;
    overlay_ = new Overlay(value_or_throw(load_overlay(options, drifts)));
  }
  Overlay& overlay() const { return *overlay_; }

 private:
  void add(MapContent& map, const std::string& name) {
    MapObject object;
    object.path = dir_.path() + "/" + name;
    const std::string content(5000, name[3]);
    const auto file = value_or_throw(open_file(object.path, O_RDWR | O_CREAT));
    value_or_throw(write_all(file.get(), content, object.path));
    struct stat status {};
    (void)::fstat(file.get(), &status);
    object.stamp = file_stamp(status);
    object.mode = status.st_mode;
    object.hash = hash_bytes(content);
    object.is_elf = false;
    map.paths.emplace_back(object.path, static_cast<ObjectId>(map.objects.size()));
    map.objects.push_back(std::move(object));
  }
  void add_tree(MapContent& map) const {
    TreeIndexWriter::Entry root{.mode = S_IFDIR | 0700};  // the temporary directory's
    for (const auto& object : map.objects)
      root.children.push_back({.name = object.path.substr(object.path.rfind('/') + 1),
                               .mode = S_IFREG | 0644,
                               .size = object.stamp.size,
                               .mtime_ns = object.stamp.mtime_ns});
    root.children.push_back(
        {.name = "link", .mode = S_IFLNK | 0777, .size = 7, .target = "liba.so"});
    root.children.push_back({.name = "hole", .mode = S_IFDIR | 0755, .hole = true});
    map.trees = {{dir_.path(), value_or_throw(TreeIndexWriter::encode(std::move(root)))}};
  }
  TempDir dir_ = value_or_throw(TempDir::create("heddle-fuzz"));
  Overlay* overlay_ = nullptr;
};

bool is_answered(std::uint32_t opcode) {
  switch (opcode) {
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
    case FUSE_NOTIFY_REPLY:
      return false;
    default:
      return true;
  }
}

/// libfuse's session and its kernel; answers go to /dev/null and are counted.
class Kernel {
 public:
  explicit Kernel(Overlay& overlay)
      : session_(value_or_throw(Session::create(Overlay::ops(), &overlay,
                                                value_or_throw(open_file("/dev/null", O_RDWR)),
                                                SessionOptions{}, memory_))) {
    init(UINT32_MAX);
  }

  void init(std::uint32_t flags) {
    fuse_init_in in{};
    in.major = FUSE_KERNEL_VERSION;
    in.minor = FUSE_KERNEL_MINOR_VERSION;
    in.max_readahead = 1U << 17;
    in.flags = flags;
    send(FUSE_INIT, FUSE_ROOT_ID, {reinterpret_cast<const char*>(&in), sizeof(in)});
  }

  void send(std::uint32_t opcode, std::uint64_t inode, std::string_view arguments) {
    std::string request(kRoom, '\0');
    fuse_in_header header{};
    const std::size_t size = std::min(arguments.size(), kRoom / 2);
    header.len = static_cast<std::uint32_t>(sizeof(header) + size);
    header.opcode = opcode;
    header.unique = unique_ += 2;
    header.nodeid = inode;
    std::memcpy(request.data(), &header, sizeof(header));
    std::memcpy(request.data() + sizeof(header), arguments.data(), size);
    if (opcode == FUSE_BATCH_FORGET) correct_count(request.data() + sizeof(header), size);
    fuse_buf buffer{};
    buffer.mem = request.data();
    buffer.size = header.len;
    const std::uint64_t before = memory_.answers;
    fuse_session_process_buf(session_.raw(), &buffer);
    const std::uint64_t due = is_answered(opcode) ? 1 : 0;
    // Another thread answers reads (fuseovl/files/reader_pool.hpp).
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (memory_.answers - before < due && std::chrono::steady_clock::now() < deadline)
      std::this_thread::yield();
    std::uint64_t given = memory_.answers - before;
    // libfuse answers an interrupt without a request (EAGAIN) together with the next request.
    if (interrupts_ > 0 && given == due + 1) {
      --interrupts_;
      --given;
    }
    interrupts_ += opcode == FUSE_INTERRUPT;
    check(given == due, "a request was not answered once");
  }

 private:
  /// libfuse trusts the kernel's count of inodes in BATCH_FORGET (lib/fuse_lowlevel.c).
  static void correct_count(char* arguments, std::size_t size) {
    fuse_batch_forget_in in{};
    std::memcpy(&in, arguments, sizeof(in));
    const std::size_t room = size > sizeof(in) ? size - sizeof(in) : 0;
    in.count = std::min(in.count, static_cast<std::uint32_t>(room / sizeof(fuse_forget_one)));
    std::memcpy(arguments, &in, sizeof(in));
  }

  SessionMemory memory_;
  Session session_;
  std::uint64_t unique_ = 0;
  unsigned interrupts_ = 0;
};

std::string request(std::uint8_t opcode, std::uint64_t inode, std::string_view arguments) {
  return std::string(1, static_cast<char>(opcode)) +
         std::string(reinterpret_cast<const char*>(&inode), sizeof(inode)) + text_piece(arguments);
}

template <class T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

}  // namespace

void run(std::string_view bytes) {
  // One session, as in a worker. It is leaked: its threads run until the process ends.
  static const ServedDirectory directory;
  static auto& kernel = *new Kernel(directory.overlay());
  Input input(bytes);
  while (!input.empty()) {
    const auto opcode = input.number<std::uint8_t>();
    const auto inode = input.number<std::uint64_t>();
    const auto arguments = input.text();
    // The kernel sends nothing after DESTROY.
    if (opcode == FUSE_DESTROY) return;
    kernel.send(opcode, inode, arguments);
  }
}

std::vector<std::string> seeds() {
  fuse_read_in read{};
  read.size = 8192;
  read.offset = 100;
  fuse_getattr_in attributes{};
  fuse_open_in open{};
  std::string requests;
  for (const char* name : {"v", "liba.so", ".heddle", "gone"})
    requests += request(FUSE_LOOKUP, 1, std::string_view(name, std::strlen(name) + 1));
  for (std::uint64_t inode = 1; inode < 20; ++inode) {
    requests += request(FUSE_GETATTR, inode, bytes_of(attributes));
    requests += request(FUSE_OPEN, inode, bytes_of(open));
    requests += request(FUSE_READ, inode, bytes_of(read));
    requests += request(FUSE_OPENDIR, inode, bytes_of(open));
    requests += request(FUSE_READDIR, inode, bytes_of(read));
    requests += request(FUSE_READDIRPLUS, inode, bytes_of(read));
  }
  requests += request(FUSE_STATFS, 1, {}) + request(FUSE_FORGET, 16, std::string(8, '\1')) +
              request(FUSE_GETXATTR, 16, std::string(8, '\0') + "user.x") +
              request(FUSE_ACCESS, 16, std::string(8, '\1')) + request(FUSE_DESTROY, 0, {});
  return {requests};
}

}  // namespace heddle::fuzz
