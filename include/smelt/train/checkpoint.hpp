// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints of a trainer: save and load.
//
//   root/step-00001234/weights.safetensors    master weights by name, [rows, columns]; the type as
//                                             text in the metadata; a tied head stored once
//                     /optimizer.safetensors  AdamW's moments: first_moment.<name>, second_moment.
//                     /state.json             step, seed, options, checksums of the two files
//
// The files are the same whatever the number of ranks (checkpoint_tensors.hpp).
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
#include "smelt/train/checkpoint_tensors.hpp"
#include "smelt/train/step.hpp"

namespace smelt {

namespace detail {

// Raised when a file of today would be misread by the code of tomorrow.
inline constexpr const char* tensors_version = "1";

// Writes a file of tensors on rank 0; every rank calls with the same ones.
template <class Engine, class Policy, class Real>
noted_file write_tensors(Engine& ranks, const Policy& run, const std::filesystem::path& path,
                         std::vector<stored_tensor<Real>> tensors,
                         std::map<std::string, std::string> metadata,
                         std::int64_t piece_elements = std::int64_t{1} << 22) {
  // The writer's order, which the other ranks must know without one.
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  std::optional<safetensors_writer> writer;
  if (ranks.rank() == 0) {
    std::vector<tensor_info> infos;
    for (const auto& tensor : tensors) infos.push_back({tensor.name, dtype_of<Real>, tensor.shape});
    writer.emplace(path, std::move(infos), std::move(metadata));
  }
  gather_tensors(ranks, run, tensors, piece_elements,
                 [&](const stored_tensor<Real>& tensor, std::span<const Real> piece) {
                   writer->write(tensor.name, std::as_bytes(piece));
                 });
  if (!writer) return {};
  const written_file written = writer->finish();
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
    for (const stored_part<Real>& part : tensor.parts)
      upload(run, file.view<Real>(tensor.name).data() + part.first, part.count, part.data);
}

// As files spell types; a record of bf16 products is not resumed with float32 ones.
template <class Policy>
std::string compute_name() {
  return std::string(dtype_name(dtype_of<typename Policy::compute>));
}

// Both ways of loading; `expected` is null where the record may be any.
template <class Model, class Policy, class Engine>
checkpoint_state load_checkpoint(trainer<Model, Policy, Engine>& into,
                                 const std::filesystem::path& folder,
                                 const training_record* expected) {
  into.resume_at(into.steps());  // throws where a step is unfinished, and changes nothing
  auto [state, notes] = read_state(folder / checkpoint_record);
  if (expected != nullptr)
    expect_same_run(state, compute_name<Policy>(), *expected,
                    (folder / checkpoint_record).string());
  const safetensors_file weights(folder / checkpoint_weights);
  const safetensors_file optimizer(folder / checkpoint_optimizer);
  using real = typename Policy::real;
  const auto weights_here = weight_tensors<real>(into, part_choice::held_here);
  const auto moments_here = moment_tensors<real>(into, part_choice::held_here);
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
/// keep. The same trainer and record give the same bytes. Of several ranks all call, rank 0 writes,
/// and nobody returns before the checkpoint is there.
/// @return where it stands: root/step-00001234.
/// @throws smelt::error naming file and reason where the disk does not take it; the checkpoints
///         before it are then as they were, and of this one nothing is left.
template <class Model, class Policy, class Engine>
std::filesystem::path save(trainer<Model, Policy, Engine>& from, const std::filesystem::path& root,
                           const training_record& record, const retention& keep = {}) {
  from.resume_at(from.steps());  // throws where a step is unfinished, and changes nothing
  if (keep.last < 1)
    throw error("retention.last: expected at least 1, found " + std::to_string(keep.last) +
                "; the checkpoint just written is one of them");
  using detail::part_choice;
  using real = typename Policy::real;
  auto& ranks = from.team().world();
  std::optional<checkpoint_writer> writer;
  if (ranks.rank() == 0) writer.emplace(root, from.steps());
  const std::filesystem::path folder = writer ? writer->folder() : root;
  std::map<std::string, std::string> about_weights{
      {"smelt.content", "weights"},
      {"smelt.version", detail::tensors_version},
      {"architecture", architecture_text(architecture_fields<Model>())}};
  // Who reads the file alone must know why there is no tensor "head".
  if (from.plan().tied()) about_weights["head"] = "embedding";
  // state.json comes last: it notes the other two.
  std::vector<detail::noted_file> files;
  files.push_back(detail::write_tensors(ranks, from.policy(), folder / checkpoint_weights,
                                        detail::weight_tensors<real>(from, part_choice::to_write),
                                        about_weights));
  files.push_back(detail::write_tensors(
      ranks, from.policy(), folder / checkpoint_optimizer,
      detail::moment_tensors<real>(from, part_choice::to_write),
      {{"smelt.content", "adamw moments"}, {"smelt.version", detail::tensors_version}}));
  std::filesystem::path place = root / checkpoint_name(from.steps());
  if (writer) {
    detail::write_state(folder / checkpoint_record,
                        {from.steps(), detail::compute_name<Policy>(), record}, files);
    place = writer->finish();
    writer->prune(keep);
  }
  ranks.barrier();
  return place;
}

/// Reads one checkpoint, root/step-00001234, into a trainer of the same model, whatever its options
/// its element type of products and its number of ranks: to begin a branch, to go on in another
/// precision. Of several ranks each reads for itself what it holds.
/// @throws smelt::error in one line naming file, field or tensor, expected and found; nothing in
///         the trainer has changed then.
template <class Model, class Policy, class Engine>
checkpoint_state load(trainer<Model, Policy, Engine>& into,
                      const std::filesystem::path& checkpoint) {
  return detail::load_checkpoint(into, checkpoint, nullptr);
}

/// Reads the latest checkpoint below a root, if there is one, and demands that it is of this run:
/// what the trainer then does is bit for bit what the stopped one would have done.
/// @return nothing where there is no checkpoint: begin at step 0.
/// @throws smelt::error as load, and where a field of the record or the compute type differs.
template <class Model, class Policy, class Engine>
std::optional<checkpoint_state> resume(trainer<Model, Policy, Engine>& into,
                                       const std::filesystem::path& root,
                                       const training_record& record) {
  const std::optional<std::filesystem::path> latest = latest_checkpoint(root);
  if (!latest) return std::nullopt;
  return detail::load_checkpoint(into, *latest, &record);
}

}  // namespace smelt
