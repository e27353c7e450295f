// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints of a trainer: save and load.
//
//   root/step-00001234/weights.safetensors    master weights by name, [rows, columns]; the type as
//                                             text in the metadata; a tied head stored once
//                     /optimizer.safetensors  AdamW's moments: first_moment.<name>, second_moment.
//                     /state.json             step, seed, options, checksums of the two files
//
// A checkpoint is there whole or not at all (checkpoint_folder.hpp), whenever the program is killed
// and when the disk is full. Loading changes nothing in the trainer before every byte was checked.
// Tensors pass through one piece of 4 Mi elements, so a model need not fit twice. With the same
// record, model, policy type and text, N steps are the bits of k steps, save, load and N - k steps,
// on any number of threads. Needs nlohmann-json (Debian: nlohmann-json3-dev).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "smelt/io/dtype.hpp"
#include "smelt/io/message.hpp"
#include "smelt/io/safetensors.hpp"
#include "smelt/train/checkpoint_architecture.hpp"
#include "smelt/train/checkpoint_folder.hpp"
#include "smelt/train/checkpoint_state.hpp"
#include "smelt/train/step.hpp"

namespace smelt {

namespace detail {

// Raised when a file of today would be misread by the code of tomorrow.
inline constexpr const char* tensors_version = "1";

// A tensor in the memory of a policy and its name in the file.
template <class Real>
struct stored_tensor {
  std::string name;
  std::vector<std::int64_t> shape;
  Real* data;
  std::int64_t count;
};

// The tensors of an arena, padding left out: it is zero and stays so.
template <class Real, class Policy>
void add_tensors(const model_plan& plan, const std::string& prefix,
                 const tensor_arena<Real, Policy>& arena, std::vector<stored_tensor<Real>>& all) {
  for_each_tensor(plan, [&](const std::string& name, const tensor_place& place) {
    all.push_back({prefix + name, {place.rows, place.columns}, arena.at(place), place.count()});
  });
}

// What weights.safetensors holds: master weights, which the copy for products is rounded from.
template <class Model, class Policy>
auto weight_tensors(trainer<Model, Policy>& from) {
  std::vector<stored_tensor<typename Policy::real>> all;
  add_tensors(from.plan(), "", from.state().weights, all);
  return all;
}

// What optimizer.safetensors holds. Its steps, for the bias corrections, are the trainer's.
template <class Model, class Policy>
auto moment_tensors(trainer<Model, Policy>& from) {
  std::vector<stored_tensor<typename Policy::real>> all;
  add_tensors(from.plan(), "first_moment.", from.first_moments(), all);
  add_tensors(from.plan(), "second_moment.", from.second_moments(), all);
  return all;
}

// Writes tensors a piece at a time, so that a device's model is never whole in the host's memory.
// The download is the policy's own; on the host it is a copy.
template <class Policy, class Real>
noted_file write_tensors(const Policy& run, const std::filesystem::path& path,
                         const std::vector<stored_tensor<Real>>& tensors,
                         std::map<std::string, std::string> metadata,
                         std::int64_t piece_elements = std::int64_t{1} << 22) {
  std::vector<tensor_info> infos;
  std::map<std::string, const stored_tensor<Real>*> by_name;
  for (const stored_tensor<Real>& tensor : tensors) {
    infos.push_back({tensor.name, dtype_of<Real>, tensor.shape});
    by_name[tensor.name] = &tensor;
  }
  safetensors_writer writer(path, std::move(infos), std::move(metadata));
  std::vector<Real> piece;
  for (const tensor_info& info : writer.order()) {
    const stored_tensor<Real>& tensor = *by_name.at(info.name);
    for (std::int64_t first = 0; first < tensor.count; first += piece_elements) {
      const std::int64_t count = std::min(piece_elements, tensor.count - first);
      piece.resize(static_cast<std::size_t>(count));
      download(run, static_cast<const Real*>(tensor.data) + first, count, piece.data());
      writer.write(info.name, std::as_bytes(std::span<const Real>(piece)));
    }
  }
  const written_file written = writer.finish();
  return {path.filename().string(), written.size_bytes, written.checksum.text()};
}

// The text under a key of a file's metadata.
inline std::string metadata_text(const safetensors_file& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end())
    throw io_error(file.path().string() + ": __metadata__", "the key '" + key + "'", "none",
                   "name a checkpoint of this library");
  return found->second;
}

// That the file is what its name says, in a version that is understood.
inline void expect_format(const safetensors_file& file, const std::string& content) {
  const auto demand = [&](const char* key, const std::string& expected, const char* remedy) {
    if (const std::string found = metadata_text(file, key); found != expected)
      throw io_error(file.path().string() + ": __metadata__ " + key, "'" + expected + "'",
                     quoted_name(found), remedy);
  };
  demand("smelt.content", content, "name a checkpoint of this library");
  demand("smelt.version", tensors_version,
         "read it with the version of this library that wrote it");
}

// All of these tensors and no other, of this type and these shapes.
template <class Real>
void expect_tensors(const safetensors_file& file, const std::vector<stored_tensor<Real>>& tensors) {
  for (const stored_tensor<Real>& tensor : tensors)
    file.expect(tensor.name, dtype_of<Real>, tensor.shape);
  if (file.tensors().size() == tensors.size()) return;
  for (const tensor_info& info : file.tensors())
    if (std::none_of(tensors.begin(), tensors.end(),
                     [&](const auto& tensor) { return tensor.name == info.name; }))
      throw io_error(file.path().string() + ": tensor " + quoted_name(info.name),
                     "only tensors of the model", tensor_text(info.type, info.shape),
                     "check that the file belongs to this model");
}

// That the file is the one that was written: the one check that reads all of it.
inline void expect_noted(const safetensors_file& file, const std::vector<noted_file>& notes) {
  const std::string name = file.path().filename().string();
  const auto noted =
      std::find_if(notes.begin(), notes.end(), [&](const auto& note) { return note.name == name; });
  const std::string remedy = "the file was changed or damaged: use another checkpoint";
  if (noted == notes.end())
    throw io_error(file.path().string(), "a note of it in " + std::string(checkpoint_record),
                   "none", remedy);
  std::error_code ignored;  // it is open: it has a size
  const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(file.path(), ignored));
  if (bytes != noted->bytes)
    throw io_error(file.path().string(), byte_text(noted->bytes), byte_text(bytes), remedy);
  if (const std::string sum = file.checksum().text(); sum != noted->xxh64)
    throw io_error(file.path().string() + ": checksum", noted->xxh64, sum, remedy);
}

// From the mapped file, page by page. A disk that fails only now ends the program by a signal: the
// trainer is lost then, the checkpoint is not.
template <class Policy, class Real>
void read_tensors(const Policy& run, const safetensors_file& file,
                  const std::vector<stored_tensor<Real>>& tensors) {
  for (const stored_tensor<Real>& tensor : tensors)
    upload(run, file.view<Real>(tensor.name).data(), tensor.count, tensor.data);
}

// As files spell types; a record of bf16 products is not resumed with float32 ones.
template <class Policy>
std::string compute_name() {
  return std::string(dtype_name(dtype_of<typename Policy::compute>));
}

// Both ways of loading; `expected` is null where the record may be any.
template <class Model, class Policy>
checkpoint_state load_checkpoint(trainer<Model, Policy>& into, const std::filesystem::path& folder,
                                 const training_record* expected) {
  into.resume_at(into.steps());  // throws where a step is unfinished, and changes nothing
  auto [state, notes] = read_state(folder / checkpoint_record);
  if (expected != nullptr)
    expect_same_run(state, compute_name<Policy>(), *expected,
                    (folder / checkpoint_record).string());
  const safetensors_file weights(folder / checkpoint_weights);
  const safetensors_file optimizer(folder / checkpoint_optimizer);
  const auto weights_here = weight_tensors(into);
  const auto moments_here = moment_tensors(into);
  // Cheap checks first, and of those the one whose message says most.
  expect_format(weights, "weights");
  expect_architecture(architecture_fields<Model>(), metadata_text(weights, "architecture"),
                      weights.path().string());
  expect_tensors(weights, weights_here);
  expect_format(optimizer, "adamw moments");
  expect_tensors(optimizer, moments_here);
  expect_noted(weights, notes);
  expect_noted(optimizer, notes);
  // From here on the trainer changes.
  read_tensors(into.policy(), weights, weights_here);
  read_tensors(into.policy(), optimizer, moments_here);
  into.state().refresh_copy(into.policy());
  into.resume_at(state.step);
  return state;
}

}  // namespace detail

/// Writes a checkpoint of a trainer whose steps are all finished, then removes what `keep` does not
/// keep. The same trainer and record give the same bytes.
/// @return where it stands: root/step-00001234.
/// @throws smelt::error naming file and reason where the disk does not take it; the checkpoints
///         before it are then as they were, and of this one nothing is left.
template <class Model, class Policy>
std::filesystem::path save(trainer<Model, Policy>& from, const std::filesystem::path& root,
                           const training_record& record, const retention& keep = {}) {
  from.resume_at(from.steps());  // throws where a step is unfinished, and changes nothing
  if (keep.last < 1)
    throw error("retention.last: expected at least 1, found " + std::to_string(keep.last) +
                "; the checkpoint just written is one of them");
  checkpoint_writer writer(root, from.steps());
  std::map<std::string, std::string> about_weights{
      {"smelt.content", "weights"},
      {"smelt.version", detail::tensors_version},
      {"architecture", architecture_text(architecture_fields<Model>())}};
  // Who reads the file alone must know why there is no tensor "head".
  if (from.plan().tied()) about_weights["head"] = "embedding";
  // state.json comes last: it notes the other two.
  std::vector<detail::noted_file> files;
  files.push_back(detail::write_tensors(from.policy(), writer.folder() / checkpoint_weights,
                                        detail::weight_tensors(from), about_weights));
  files.push_back(detail::write_tensors(
      from.policy(), writer.folder() / checkpoint_optimizer, detail::moment_tensors(from),
      {{"smelt.content", "adamw moments"}, {"smelt.version", detail::tensors_version}}));
  detail::write_state(writer.folder() / checkpoint_record,
                      {from.steps(), detail::compute_name<Policy>(), record}, files);
  const std::filesystem::path place = writer.finish();
  writer.prune(keep);
  return place;
}

/// Reads one checkpoint, root/step-00001234, into a trainer of the same model, whatever its options
/// and its element type of products: to begin a branch, to go on in another precision.
/// @throws smelt::error in one line naming file, field or tensor, expected and found; nothing in
///         the trainer has changed then.
template <class Model, class Policy>
checkpoint_state load(trainer<Model, Policy>& into, const std::filesystem::path& checkpoint) {
  return detail::load_checkpoint(into, checkpoint, nullptr);
}

/// Reads the latest checkpoint below a root, if there is one, and demands that it is of this run:
/// what the trainer then does is bit for bit what the stopped one would have done.
/// @return nothing where there is no checkpoint: begin at step 0.
/// @throws smelt::error as load, and where a field of the record or the compute type differs.
template <class Model, class Policy>
std::optional<checkpoint_state> resume(trainer<Model, Policy>& into,
                                       const std::filesystem::path& root,
                                       const training_record& record) {
  const std::optional<std::filesystem::path> latest = latest_checkpoint(root);
  if (!latest) return std::nullopt;
  return detail::load_checkpoint(into, *latest, &record);
}

}  // namespace smelt
