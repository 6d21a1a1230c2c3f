// The safetensors reader and writer: round trips, and every kind of damaged header.
#include "model/safetensors.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "model/hkt_attention.h"
#include "torch/expect_error.h"

namespace strata {
namespace {

constexpr auto kReaders = {load_safetensors, map_safetensors};

std::string temporary(const std::string& name) { return testing::TempDir() + "/" + name; }

void write_raw(const std::string& path, const std::string& header, const std::string& data, int64_t claimed = -1) {
  std::ofstream out(path, std::ios::binary);
  const uint64_t length = claimed >= 0 ? claimed : header.size();
  for (int byte = 0; byte < 8; ++byte) out.put(static_cast<char>(length >> (8 * byte)));
  out << header << data;
}

TEST(Safetensors, RoundTripOfEveryType) {
  NamedTensors tensors;
  for (auto type : {torch::kFloat64, torch::kFloat32, torch::kFloat16, torch::kBFloat16, torch::kInt64, torch::kInt32,
                    torch::kInt16, torch::kInt8, torch::kUInt8, torch::kBool}) {
    tensors.emplace_back(std::string("t.") + c10::toString(type), (torch::rand({2, 3}) * 10).to(type));
  }
  tensors.emplace_back("scalar", torch::tensor(3.0));
  tensors.emplace_back("empty", torch::zeros({0, 4}));
  tensors.emplace_back("empty, and wider than the file", torch::zeros({1000000, 0, 3}));
  tensors.emplace_back("strided", torch::rand({4, 6}).t());
  const std::string path = temporary("round.safetensors");
  save_safetensors(path, tensors, {{"kind", "test \"quoted\" \n"}});
  for (const auto read : kReaders) {
    const SafetensorsFile file = read(path, DigestCheck::kIfStored);
    EXPECT_EQ(file.metadata.at("kind"), "test \"quoted\" \n");
    std::map<std::string, torch::Tensor> loaded(file.tensors.begin(), file.tensors.end());
    ASSERT_EQ(loaded.size(), tensors.size());
    for (const auto& [name, tensor] : tensors) EXPECT_TRUE(torch::equal(loaded.at(name), tensor)) << name;
  }
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    EXPECT_EQ(entry.path().string().find("round.safetensors.part"), std::string::npos) << entry.path();
}

std::string content_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Whatever byte of a file of ours changes, it is refused, or it holds the same tensors and metadata.
TEST(Safetensors, NoChangedByteChangesATensor) {
  const std::string path = temporary("digest.safetensors"), copy = temporary("changed.safetensors");
  const NamedTensors tensors = {{"a", torch::arange(12).reshape({3, 4})}, {"b", torch::tensor({1.5, -2.0})}};
  save_safetensors(path, tensors, {{"note", "\"strata.sha256\":\"0000\""}});
  const std::string whole = content_of(path);
  int refused = 0;
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 4);
    std::ofstream(copy, std::ios::binary) << changed;
    for (const auto read : kReaders) {
      try {
        const SafetensorsFile file = read(copy, DigestCheck::kIfStored);
        ASSERT_EQ(file.tensors.size(), tensors.size()) << at;
        for (size_t i = 0; i < tensors.size(); ++i)
          EXPECT_TRUE(torch::equal(file.tensors[i].second, tensors[i].second));
        EXPECT_EQ(file.metadata.at("note"), "\"strata.sha256\":\"0000\"") << at;
      } catch (const c10::Error&) {
        ++refused;
      }
    }
  }
  EXPECT_GE(refused, 2 * static_cast<int>(whole.size() - std::string(kDigestKey).size()));  // all but its own name
}

TEST(Safetensors, TheDigestCanBeSkippedAndMayBeMissing) {
  const std::string path = temporary("skip.safetensors");
  save_safetensors(path, {{"a", torch::zeros({4})}});
  EXPECT_TRUE(load_safetensors(path).metadata.empty());
  std::string whole = content_of(path);
  whole.back() = 1;
  std::ofstream(path, std::ios::binary) << whole;
  for (const auto read : kReaders) {
    expect_error([&] { read(path, DigestCheck::kIfStored); }, "expected SHA-256");
    EXPECT_EQ(read(path, DigestCheck::kSkip).tensors.size(), 1U);
  }
  write_raw(path, R"({"__metadata__":{"from":"elsewhere"},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
            "abcd");
  for (const auto read : kReaders) EXPECT_EQ(read(path, DigestCheck::kIfStored).metadata.at("from"), "elsewhere");
}

TEST(Safetensors, DamagedFilesAreRefused) {
  const std::string path = temporary("bad.safetensors");
  auto refuse = [&](const std::string& header, const std::string& data, const std::string& words,
                    int64_t claimed = -1) {
    write_raw(path, header, data, claimed);
    for (const auto read : kReaders) expect_error([&] { read(path, DigestCheck::kIfStored); }, words);
  };
  const std::string four(4, 'x');
  refuse("{}", "", "claims a header of 1000000000000", 1000000000000);
  refuse("{}", "", "claims a header of 3", 3);
  refuse("{oops", "", "not JSON");
  refuse("[]", "", "not a JSON object");
  refuse(R"({"a":{"dtype":"F32","shape":[1]}})", four, "expected a dtype, a shape and two data_offsets");
  refuse(R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", four, "unknown dtype \"F31\"");
  refuse(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", four, "claims bytes 0 to 8 of 4");
  refuse(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", four, "claims bytes 4 to 0");
  refuse(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", four, "needs 8 bytes for its shape");
  refuse(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,0]}})", "", "needs 4 bytes for its shape");
  refuse(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4]}})", four, "shape larger");
  refuse(R"({"a":{"dtype":"U8","shape":[0,4611686018427387904,3],"data_offsets":[0,0]}})", "", "shape larger");
  refuse(R"({"a":{"dtype":"U8","shape":[0,9223372036854775808],"data_offsets":[0,0]}})", "", "shape larger");
  refuse(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", four, "expected sizes that are natural numbers");
  refuse(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
         four, "neither overlap nor leave gaps");
  refuse(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})", four, "starts at byte 2, expected 0");
  refuse(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", four, "2 bytes after the last tensor");
  refuse(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
         four, "\"a\" appears twice");
  refuse(R"({"__metadata__":{"x":1}})", "", "not a string");
  refuse(R"({"a":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})", "x", "nested deeper");
  refuse("{\"a\":" + std::string(10000, '['), "", "nested deeper");
  refuse(std::string("{}\0{\"a\":1}", 10), "", "zero byte");
  const std::string name(10000, 'n'), shape = R"(":{"dtype":"U8","shape":[2],"data_offsets":[0,4]}})";
  refuse("{\"" + name + shape, four, name.substr(0, 200) + "...\" needs 2 bytes");
  std::ofstream(path, std::ios::trunc) << "abc";
  expect_error([&] { load_safetensors(path); }, "fewer than 8 bytes");
  expect_error([&] { load_safetensors(temporary("nowhere.safetensors")); }, "cannot open");
  expect_error([&] { save_safetensors(temporary("no/such/folder/x"), {}); }, "cannot write");
}

TEST(Safetensors, ModulesWantTheirOwnNamesAndShapes) {
  const std::string path = temporary("module.safetensors");
  HktAttention saved(HktAttentionOptions(16, 4)), same(HktAttentionOptions(16, 4));
  save_module(*saved, path, {{"levels", "3"}});
  EXPECT_EQ(load_module(*same, path).at("levels"), "3");
  const auto x = torch::randn({1, 7, 16});
  EXPECT_TRUE(torch::equal(saved->forward(x), same->forward(x)));

  HktAttention deeper(HktAttentionOptions(16, 4).levels(4)), wider(HktAttentionOptions(32, 4)),
      flat(HktAttentionOptions(16, 4).per_level_projections(true));
  const auto before = deeper->level_weights();
  expect_error([&] { load_module(*deeper, path); }, "filter_3");
  EXPECT_TRUE(torch::equal(deeper->level_weights(), before));  // nothing was changed
  expect_error([&] { load_module(*wider, path); }, "expected shape [3, 32], got [3, 16]");
  expect_error([&] { load_module(*flat, path); }, "expected a tensor \"query_0.weight\"");
  save_safetensors(path, {{"level_logits", torch::zeros({4, 1})}});
  expect_error([&] { load_module(*same, path); }, "found none");
}

}  // namespace
}  // namespace strata
