#include "model/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "util/atomic_file.h"
#include "util/sha256.h"

namespace strata {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using torch::Tensor;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr uint64_t kMaxBytes = std::numeric_limits<int64_t>::max();
constexpr size_t kMaxReason = 200;  // of the parser's words, which repeat what it read
constexpr size_t kMaxName = 200;    // of a name in a message
constexpr int kMaxDepth = 2;        // a shape, in a tensor, in the header

const std::vector<std::pair<const char*, at::ScalarType>>& type_names() {
  static const std::vector<std::pair<const char*, at::ScalarType>> names = {
      {"F64", at::kDouble}, {"F32", at::kFloat}, {"F16", at::kHalf}, {"BF16", at::kBFloat16}, {"I64", at::kLong},
      {"I32", at::kInt},    {"I16", at::kShort}, {"I8", at::kChar},  {"U8", at::kByte},       {"BOOL", at::kBool}};
  return names;
}

std::string in_quotes(std::string before, const std::string& name) {
  before += '"';
  before.append(name, 0, kMaxName);
  return before += name.size() > kMaxName ? "...\"" : "\"";
}
std::string named(const std::string& name) { return in_quotes("tensor ", name); }

struct Entry {
  std::string name;
  at::ScalarType type = at::kFloat;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;
};

// One tensor of the header, with its size checked against its shape. `fail` throws.
template <class Fail>
Entry parse_entry(const std::string& name, const json& value, uint64_t data_bytes, const Fail& fail) {
  Entry entry;
  entry.name = name;
  if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") || !value.contains("data_offsets") ||
      !value["dtype"].is_string() || !value["shape"].is_array() || !value["data_offsets"].is_array() ||
      value["data_offsets"].size() != 2) {
    fail(named(name) + ": expected a dtype, a shape and two data_offsets");
  }
  const auto& names = type_names();
  const auto type = std::find_if(names.begin(), names.end(), [&](const auto& n) { return value["dtype"] == n.first; });
  if (type == names.end()) fail(named(name) + in_quotes(" has the unknown dtype ", value["dtype"].get<std::string>()));
  entry.type = type->second;
  for (const json& offset : value["data_offsets"]) {
    if (!offset.is_number_unsigned()) fail(named(name) + ": expected data offsets that are natural numbers");
  }
  entry.begin = value["data_offsets"][0];
  entry.end = value["data_offsets"][1];
  if (entry.begin > entry.end || entry.end > data_bytes) {
    fail(named(name) + " claims bytes " + std::to_string(entry.begin) + " to " + std::to_string(entry.end) + " of " +
         std::to_string(data_bytes));
  }
  // The product skips zeros: a tensor of shape (4, 0) is empty, but torch multiplies its other sizes for its strides.
  uint64_t bytes = c10::elementSize(entry.type);
  bool empty = false;
  for (const json& size : value["shape"]) {
    if (!size.is_number_unsigned()) fail(named(name) + ": expected sizes that are natural numbers");
    const uint64_t n = size;
    if (n != 0 && bytes > kMaxBytes / n) fail(named(name) + " has a shape larger than any file");
    if (n != 0) bytes *= n;
    empty = empty || n == 0;
    entry.shape.push_back(static_cast<int64_t>(n));
  }
  if (empty) bytes = 0;
  if (bytes != entry.end - entry.begin) {
    fail(named(name) + " needs " + std::to_string(bytes) + " bytes for its shape, its offsets span " +
         std::to_string(entry.end - entry.begin));
  }
  return entry;
}

// Parses JSON and rejects what the parser accepts: a name that appears twice (the second would overwrite the first),
// nesting (each bracket would cost 70 bytes) and a zero byte (it would end the text).
template <class Fail>
json parse_header(const std::string& header, const Fail& fail) {
  std::vector<std::string> seen;
  json::parser_callback_t note_keys = [&](int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::key && depth == 1) seen.push_back(parsed.get<std::string>());
    const bool opens = event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    if (opens && depth > kMaxDepth) fail("its header is nested deeper than tensors and their shapes");
    return true;
  };
  if (header.find('\0') != std::string::npos) fail("its header is not JSON (it has a zero byte)");
  json parsed;
  try {
    parsed = json::parse(header, note_keys);
  } catch (const json::exception& error) {
    fail("its header is not JSON (" + std::string(error.what()).substr(0, kMaxReason) + ")");
  }
  if (!parsed.is_object()) fail("its header is not a JSON object");
  std::sort(seen.begin(), seen.end());
  const auto twice = std::adjacent_find(seen.begin(), seen.end());
  if (twice != seen.end()) fail(in_quotes("the name ", *twice) + " appears twice");
  return parsed;
}

// The digest is of the whole file, with zeros in the place of the digest itself.
const std::string kNoDigest(64, '0');

// Where the digest stands in a header; npos: nowhere. Inside a string, the quotes of the key would be escaped.
size_t find_digest(const std::string& header) {
  const std::string key = std::string("\"") + kDigestKey + "\"";
  for (size_t at = header.find(key); at != std::string::npos; at = header.find(key, at + 1)) {
    size_t value = at + key.size();
    for (const char expected : {':', '"'}) {
      value = std::min(header.find_first_not_of(" \t\r\n", value), header.size());
      if (value < header.size() && header[value] == expected) ++value;
    }
    const size_t end = header.find_first_not_of("0123456789abcdef", value);
    if (end == value + kNoDigest.size() && header[end] == '"') return value;
  }
  return std::string::npos;
}

std::string_view bytes_of(const Tensor& tensor) {
  return {static_cast<const char*>(tensor.data_ptr()), tensor.nbytes()};
}

}  // namespace

void save_safetensors(const std::string& path, const NamedTensors& tensors, const Metadata& metadata) {
  ordered_json header = ordered_json::object();
  header["__metadata__"] = metadata;
  header["__metadata__"][kDigestKey] = kNoDigest;
  std::vector<Tensor> dense;
  uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    TORCH_CHECK(!header.contains(name), "save_safetensors: the name \"", name, "\" appears twice");
    const auto& names = type_names();
    const auto type = std::find_if(names.begin(), names.end(),
                                   [&, &t = tensor](const auto& n) { return t.scalar_type() == n.second; });
    TORCH_CHECK(type != names.end(), "save_safetensors: \"", name, "\" has the unsupported type ",
                tensor.scalar_type());
    dense.push_back(tensor.detach().cpu().contiguous());
    const uint64_t bytes = dense.back().nbytes();
    header[name] = {
        {"dtype", type->first}, {"shape", tensor.sizes().vec()}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data starts on a multiple of eight

  const uint64_t length = text.size();
  char prefix[8];
  for (int byte = 0; byte < 8; ++byte) prefix[byte] = static_cast<char>(length >> (8 * byte));
  Sha256 digest;
  digest.update({prefix, 8});
  digest.update(text);
  for (const Tensor& tensor : dense) digest.update(bytes_of(tensor));
  text.replace(find_digest(text), kNoDigest.size(), digest.hex());
  try {
    AtomicFile out(path);
    out.write(prefix, 8);
    out.write(text.data(), text.size());
    for (const Tensor& tensor : dense) out.write(tensor.data_ptr(), tensor.nbytes());
    out.commit();
  } catch (const WriteError& error) {
    TORCH_CHECK(false, "cannot write ", path, ": ", error.what(),
                "; check that the folder exists, is writable and not full");
  }
}

namespace {

// What the header says, checked: entries in the order of their data, which neither overlap nor leave gaps.
struct Contents {
  std::vector<Entry> entries;
  Metadata metadata;
  uint64_t data_begin = 0, file_bytes = 0;
  std::string stored;  // the digest that the file carries; empty: none
  Sha256 digest;       // of everything before the data
};

[[noreturn]] void refuse(const std::string& path, const std::string& reason) {
  TORCH_CHECK(false, path, " is not a safetensors file: ", reason);
  std::abort();  // not reached
}

Contents read_contents(const std::string& path, std::ifstream& in) {
  auto fail = [&](const std::string& reason) { refuse(path, reason); };
  TORCH_CHECK(in, "cannot open ", path, ": ", std::strerror(errno));
  Contents contents;
  std::error_code error;
  contents.file_bytes = std::filesystem::file_size(path, error);
  if (error) fail(error.message());
  unsigned char prefix[8];
  if (contents.file_bytes < 8 || !in.read(reinterpret_cast<char*>(prefix), 8)) fail("it has fewer than 8 bytes");
  uint64_t length = 0;
  for (int byte = 0; byte < 8; ++byte) length |= static_cast<uint64_t>(prefix[byte]) << (8 * byte);
  if (length > kMaxHeaderBytes || length > contents.file_bytes - 8) {
    fail("it claims a header of " + std::to_string(length) + " bytes in a file of " +
         std::to_string(contents.file_bytes));
  }
  std::string text(length, '\0');
  if (!in.read(text.data(), static_cast<std::streamsize>(length))) fail("its header is cut off");
  const json header = parse_header(text, fail);
  if (const size_t at = find_digest(text); at != std::string::npos) {
    contents.stored = text.substr(at, kNoDigest.size());
    text.replace(at, kNoDigest.size(), kNoDigest);
  }
  contents.digest.update({reinterpret_cast<const char*>(prefix), 8});
  contents.digest.update(text);
  contents.data_begin = 8 + length;
  const uint64_t data_bytes = contents.file_bytes - contents.data_begin;
  for (const auto& [name, value] : header.items()) {
    if (name != "__metadata__") {
      contents.entries.push_back(parse_entry(name, value, data_bytes, fail));
      continue;
    }
    if (!value.is_object()) fail("its __metadata__ is not an object");
    for (const auto& [key, item] : value.items()) {
      if (!item.is_string()) fail(in_quotes("its __metadata__ entry ", key) + " is not a string");
      if (key != kDigestKey) {
        contents.metadata[key] = item.get<std::string>();
      } else if (contents.stored.empty()) {
        contents.stored = item.get<std::string>().substr(0, kNoDigest.size()) + " (damaged)";
      }
    }
  }
  std::sort(contents.entries.begin(), contents.entries.end(),
            [](const Entry& a, const Entry& b) { return std::tie(a.begin, a.end) < std::tie(b.begin, b.end); });
  uint64_t at = 0;
  for (const Entry& entry : contents.entries) {
    if (entry.begin != at) {
      fail(named(entry.name) + " starts at byte " + std::to_string(entry.begin) + ", expected " + std::to_string(at) +
           " (data must neither overlap nor leave gaps)");
    }
    at = entry.end;
  }
  if (at != data_bytes) fail(std::to_string(data_bytes - at) + " bytes after the last tensor belong to no tensor");
  return contents;
}

// Compares the digest, now also of the data, with the one that the file carries.
void check_digest(const std::string& path, Contents& contents, DigestCheck check) {
  if (contents.stored.empty() || check == DigestCheck::kSkip) return;
  const std::string found = contents.digest.hex();
  TORCH_CHECK(found == contents.stored, path, ": expected SHA-256 ", contents.stored, ", which the file carries, got ",
              found,
              "; the file is damaged or was changed. Restore it, or skip the check (DigestCheck::kSkip; in the "
              "command --no-check-digest)");
}

}  // namespace

SafetensorsFile load_safetensors(const std::string& path, DigestCheck check) {
  std::ifstream in(path, std::ios::binary);
  Contents contents = read_contents(path, in);
  SafetensorsFile file{{}, std::move(contents.metadata)};
  for (const Entry& entry : contents.entries) {
    Tensor tensor = torch::empty(entry.shape, entry.type);
    if (!in.read(static_cast<char*>(tensor.data_ptr()), static_cast<std::streamsize>(tensor.nbytes()))) {
      refuse(path, in_quotes("the data of tensor ", entry.name) + " is cut off");
    }
    if (!contents.stored.empty() && check != DigestCheck::kSkip) contents.digest.update(bytes_of(tensor));
    file.tensors.emplace_back(entry.name, tensor);
  }
  check_digest(path, contents, check);
  return file;
}

SafetensorsFile map_safetensors(const std::string& path, DigestCheck check) {
  std::ifstream in(path, std::ios::binary);
  Contents contents = read_contents(path, in);
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  TORCH_CHECK(descriptor >= 0, "cannot open ", path, ": ", std::strerror(errno));
  const size_t bytes = contents.file_bytes;
  void* const start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, descriptor, 0);
  close(descriptor);
  TORCH_CHECK(start != MAP_FAILED, "cannot map ", path, ": ", std::strerror(errno));
  const std::shared_ptr<void> mapping(start, [bytes](void* address) { munmap(address, bytes); });
  if (!contents.stored.empty() && check != DigestCheck::kSkip)
    contents.digest.update({static_cast<const char*>(start) + contents.data_begin, bytes - contents.data_begin});
  check_digest(path, contents, check);
  SafetensorsFile file{{}, std::move(contents.metadata)};
  for (const Entry& entry : contents.entries) {
    char* const data = static_cast<char*>(start) + contents.data_begin + entry.begin;
    Tensor tensor = torch::from_blob(
        data, entry.shape, [mapping](void*) {}, entry.type);
    if (tensor.numel() > 0 && reinterpret_cast<uintptr_t>(data) % c10::elementSize(entry.type) != 0) {
      tensor = torch::empty(entry.shape, entry.type);
      std::memcpy(tensor.data_ptr(), data, tensor.nbytes());
    }
    file.tensors.emplace_back(entry.name, tensor);
  }
  return file;
}

namespace {

NamedTensors module_tensors(const torch::nn::Module& module) {
  NamedTensors tensors;
  for (const auto& item : module.named_parameters()) tensors.emplace_back(item.key(), item.value());
  for (const auto& item : module.named_buffers()) tensors.emplace_back(item.key(), item.value());
  return tensors;
}

}  // namespace

void save_module(const torch::nn::Module& module, const std::string& path, const Metadata& metadata) {
  save_safetensors(path, module_tensors(module), metadata);
}

Metadata load_module(torch::nn::Module& module, const std::string& path) {
  const SafetensorsFile file = load_safetensors(path);
  std::map<std::string, Tensor> stored(file.tensors.begin(), file.tensors.end());
  const NamedTensors own = module_tensors(module);
  // Check everything before changing anything.
  for (const auto& [name, tensor] : own) {
    const auto found = stored.find(name);
    TORCH_CHECK(found != stored.end(), path, ": expected a tensor \"", name,
                "\" for this module, found none; was it saved from a module with other options?");
    TORCH_CHECK(found->second.sizes() == tensor.sizes(), path, ": tensor \"", name, "\": expected shape ",
                tensor.sizes(), ", got ", found->second.sizes());
  }
  for (const auto& [name, tensor] : file.tensors) {
    const bool known =
        std::any_of(own.begin(), own.end(), [&, &n = name](const auto& item) { return item.first == n; });
    TORCH_CHECK(known, path, ": tensor \"", name, "\" belongs to no parameter of this module");
  }
  torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : own) {
    Tensor target = tensor;
    target.copy_(stored.at(name));
  }
  return file.metadata;
}

}  // namespace strata
