// SPDX-License-Identifier: MIT
#include "tests/policy/image_world.hpp"

#include "base/result.hpp"
#include "resolver/map/map_reader.hpp"

namespace heddle::test {

using Json = nlohmann::json;

namespace {

constexpr const char* kLib = "/lib/x86_64-linux-gnu/";
constexpr const char* kLoader = "/lib64/ld-linux-x86-64.so.2";

void copy(const std::string& from, const std::string& to) {
  fs::create_directories(fs::path(to).parent_path());
  fs::copy_file(fs::canonical(from), to, fs::copy_options::overwrite_existing);
}

}  // namespace

ImageWorld::ImageWorld() {
  for (const char* name : {"libc.so.6", "libm.so.6"})
    copy(kLib + std::string(name), in(kLib) + name);
  copy(kLoader, in(kLib) + "ld-real.so");
  fs::create_directories(in("/lib64"));
  fs::create_symlink(std::string(kLib) + "ld-real.so", in(kLoader));
  for (const auto& directory : {in("/etc"), in("/dev"), prefix()})
    fs::create_directories(directory);
}

std::string ImageWorld::mpich(const std::string& output, const std::string& version,
                              const std::string& more,
                              const std::vector<std::string>& flags) const {
  return library(output,
                 "int MPI_Init(void){return 0;}int MPI_Comm_rank(void){return 0;}"
                 "int MPIR_Err(void){return 0;}" +
                     more + "const char t[]=\"MPICH Version:\\0\" \"" + version + "\";",
                 flags);
}

void ImageWorld::program(const std::string& path, const std::string& calls,
                         const std::string& against, const std::vector<std::string>& flags) const {
  std::vector<std::string> all = {against};
  all.insert(all.end(), flags.begin(), flags.end());
  build_program(
      {.output = in(path), .source = "int main(void){" + calls + " return 0;}", .flags = all});
}

void ImageWorld::run_ldconfig() const { run_checked({"ldconfig", "-r", root()}); }

RunResult ImageWorld::fs_resolve(std::vector<std::string> words) const {
  words.insert(words.begin(), staged_program("fs-resolve"));
  return run(words, {.env = {"XDG_CACHE_HOME=" + (dir_ / "cache"), "LD_LIBRARY_PATH"}});
}

RunResult ImageWorld::build(const std::string& program, std::vector<std::string> more) const {
  std::vector<std::string> words = {"build", "--into", root(), "-o", map(), "--json"};
  if (!program.empty()) words.insert(words.end(), {"--program", program});
  if (std::find(more.begin(), more.end(), "--mpi") == more.end())
    words.insert(words.end(), {"--mpi", prefix()});
  words.insert(words.end(), more.begin(), more.end());
  return fs_resolve(words);
}

Json ImageWorld::decide(const std::string& program, std::vector<std::string> more) const {
  const auto result = build(program, std::move(more));
  auto value = Json::parse(result.out, nullptr, false);
  if (!value.is_object()) throw Error("fs-resolve", "printed no JSON", result.err);
  return value;
}

void ImageWorld::place(const Json& decision) const {
  const auto content = value_or_throw(value_or_throw(MapReader::open(map())).read_all());
  const auto mount = in(decision["mount_point"]);
  std::map<ObjectId, std::string> first;
  for (const auto& [name, id] : content.views.at(0).names) {
    const auto to = mount + "/" + name;
    fs::create_directories(fs::path(to).parent_path());
    const auto [known, is_new] = first.try_emplace(id, to);
    if (is_new)
      write_text_file(to, value_or_throw(read_file(content.objects[id].path)),
                      content.objects[id].mode & 0777);
    else
      fs::create_hard_link(known->second, to);
  }
  for (const auto& [name, bytes] : content.generated) {
    write_text_file(mount + "/" + name, bytes, bytes.starts_with("\177ELF") ? 0755 : 0644);
    if (name == ".heddle/ld.so.cache") write_text_file(mount + "/.ldc", bytes);
  }
  for (const auto& bind : decision["binds"]) {
    const auto target = in(bind["target"]);
    fs::remove(target);
    fs::create_hard_link(mount + "/" + bind["source"].get<std::string>(), target);
  }
}

std::vector<std::string> ImageWorld::real_loads(const std::string& program,
                                                const std::string& preload) const {
  std::vector<std::string> words = {"chroot", root(), kLoader};
  if (!preload.empty()) words.insert(words.end(), {"--preload", preload});
  words.insert(words.end(), {"--list", program});
  const auto listed = run(words);
  std::vector<std::string> out;
  std::istringstream lines(listed.out + listed.err);
  for (std::string line; std::getline(lines, line);) {
    const auto slash = line.find('/');
    const auto end = line.rfind(" (0x");
    if (line.find("not found") != line.npos)
      out.push_back(line);
    else if (slash != line.npos && end != line.npos)
      out.push_back(line.substr(slash, end - slash));
  }
  return out;
}

std::vector<std::string> ImageWorld::loads(const Json& decision) {
  std::vector<std::string> out;
  for (const auto& load : decision["loads"]) out.push_back(load["path"]);
  return out;
}

Json ImageWorld::verdict(const Json& decision, const std::string& soname) {
  for (const auto& verdict : decision["verdict"])
    if (verdict["soname"] == soname) return verdict;
  return {};
}

std::string bound_over(const nlohmann::json& decision, const std::string& target) {
  for (const auto& bind : decision["binds"])
    if (bind["target"] == target) return bind["source"];
  return {};
}

std::string library(const std::string& output, const std::string& source,
                    std::vector<std::string> flags) {
  auto soname = fs::path(output).filename().string();
  if (const auto at = soname.find(".so."); at != soname.npos)
    soname.resize(std::min(soname.find('.', at + 4), soname.size()));
  flags.insert(flags.begin(), "-Wl,-soname," + soname);
  return build_library({.output = output, .source = source, .flags = std::move(flags)});
}

std::string versioned(const std::string& output, const std::string& source,
                      const std::string& script) {
  write_text_file(output + ".map", script);
  auto out = library(output, source, {"-Wl,--version-script=" + output + ".map"});
  fs::remove(output + ".map");
  return out;
}

std::string open_mpi(const std::string& directory, const std::string& version,
                     const std::string& more, std::vector<std::string> flags) {
  return library(directory + "/libmpi.so.40",
                 "int MPI_Init(void){return 0;}int MPI_Comm_rank(void){return 0;}"
                 "int ompi_mpi_comm_world;const char t[]=\"v" +
                     version + "\";" + more,
                 std::move(flags));
}

std::string ucs(const std::string& output, const std::string& more) {
  return library(output,
                 "int uct_a(void){return 0;}int uct_b(void){return 0;}"
                 "int uct_c(void){return 0;}" +
                     more);
}

}  // namespace heddle::test
