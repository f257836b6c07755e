// SPDX-License-Identifier: Apache-2.0
// Which slot is whose, what is under way and what has come: the same for every device.
#include "kernels/device_readings.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "kernels/cpu/tensor_stats_block.h"
#include "kernels/device_ops.h"

namespace nanhunt::kernels {

std::unique_ptr<DeviceReadings> DeviceReadings::open(DeviceBackend& device, const ReadingsOptions& wanted,
                                                     std::string& why) noexcept {
  try {
    ReadingsOptions options = wanted;
    options.tensors = std::max<std::size_t>(options.tensors, 1);
    options.copies = std::max(options.copies, 1);
    std::unique_ptr<ReadingsPort> port = device.open_readings(options, why);
    if (port == nullptr) return nullptr;
    return std::make_unique<DeviceReadings>(std::move(port), options);
  } catch (const std::exception& e) {
    why = e.what();
  } catch (...) {
    why = "unknown error";
  }
  return nullptr;
}

DeviceReadings::DeviceReadings(std::unique_ptr<ReadingsPort> port, const ReadingsOptions& options)
    : port_(std::move(port)),
      options_(options),
      slots_(std::max<std::size_t>(options.tensors, 1)),
      entries_(std::max<std::size_t>(options.tickets, 1)),
      marks_(static_cast<std::size_t>(std::max(options.copies, 1))) {
  gathered_.reserve(kTensorsInParameters);
  others_.reserve(64);
  if (options_.references > 0) {
    checked_.reserve(kChecksInParameters);
    batch_.reserve(kChecksInParameters);
  }
}

void DeviceReadings::lose(std::uint64_t tensors, const std::string& why) {
  counts_.lost += tensors;
  if (tensors > 0 && counts_.first_loss.empty()) counts_.first_loss = why;
}

void DeviceReadings::fail(const Status& status) {
  failed_ = true;
  for (Ticket ticket = oldest_; ticket < next_; ++ticket) {
    Entry& entry = entries_[ticket % entries_.size()];
    if (entry.done || entry.end <= arrived_) continue;
    entry.done = true;
    lose(entry.end - entry.begin, status.message());
  }
}

// What nobody asks for any more, from the oldest on.
void DeviceReadings::advance_tail() {
  while (oldest_ < next_ && entries_[oldest_ % entries_.size()].done) {
    tail_ = entries_[oldest_ % entries_.size()].end;
    ++oldest_;
  }
  if (oldest_ == next_) tail_ = head_;
  handed_ = std::max(handed_, tail_);
}

// Old results that came and were not fetched give way; those under way do not.
bool DeviceReadings::make_room(std::uint64_t slots) {
  if (slots > slots_.size()) return false;
  const auto fits = [&] { return head_ + slots - tail_ <= slots_.size() && next_ - oldest_ < entries_.size(); };
  advance_tail();
  if (fits()) return true;
  look_for_arrivals();
  for (advance_tail(); !fits(); advance_tail()) {
    Entry& oldest = entries_[oldest_ % entries_.size()];
    if (oldest_ == next_ || oldest.end > arrived_) return false;
    oldest.done = true;
    lose(oldest.end - oldest.begin, "results were not fetched in time");
  }
  return true;
}

DeviceReadings::Ticket DeviceReadings::enqueue(std::span<const TensorView> tensors,
                                               std::span<const EvidenceCall> findings, const UpdatesCall* updates,
                                               std::span<const std::uint32_t> references,
                                               std::span<const OriginCall> origins,
                                               std::span<const TensorView> shown) noexcept {
  if (options_.arena_words == 0 || references.empty()) origins = {};
  std::size_t slots = tensors.size() + findings.size() + (updates == nullptr ? 0 : 1) + origins.size();
  counts_.tensors += slots;
  try {
    if (tensors.empty()) return 0;
    const std::uint64_t checks = references.empty() ? 0 : plan_checks(tensors, references);
    slots += checks;
    counts_.tensors += checks;
    if (failed_) {
      lose(slots, "the device failed");
      return 0;
    }
    if (!make_room(slots)) {
      lose(slots, "there was no room for more results under way");
      return 0;
    }
    return enqueue_all(tensors, findings, updates, references, origins, shown,
                       checks);
  } catch (...) {  // no memory
    counts_.lost += slots;
    return 0;
  }
}

DeviceReadings::Ticket DeviceReadings::enqueue_all(std::span<const TensorView> tensors,
                                                   std::span<const EvidenceCall> findings, const UpdatesCall* updates,
                                                   std::span<const std::uint32_t> references,
                                                   std::span<const OriginCall> origins,
                                                   std::span<const TensorView> shown, std::uint64_t checks) {
  const std::uint64_t begin = head_;
  const auto tag_of = [&](std::size_t i) { return references.empty() ? 0 : references[i] & ~kFirstCheck; };
  others_.clear();
  // Where the next tensor's result goes.
  std::uint64_t at = references.empty() ? gather(tensors, begin) : launch_checksum_stats(tensors, begin, begin + checks);
  for (const std::uint32_t i : others_) {
    Slot& mine = slot(at);
    mine = {.index = i, .is_checked = !references.empty()};
    const Result<DeviceStatsView> view = plan_device_view(tensors[i], mine.repeats);
    const Status status = view ? port_->launch(*view, tag_of(i), at % slots_.size()) : view.status();
    if (view) ++counts_.launches;
    mine.launched = status.is_ok();
    if (!status) lose(1, status.message());
    ++at;
  }
  const std::uint64_t end = at;
  // Histograms come right behind what decides on them: the next decision has the same memory.
  const std::uint64_t origins_at = at + findings.size() + (updates == nullptr ? 0 : 1);
  std::size_t origin = 0;
  for (std::size_t i = 0; i < findings.size(); ++i) {
    const auto index = static_cast<std::uint32_t>(i);
    if (origin == origins.size() || origins[origin].decided_by != index) {
      static_cast<void>(launch_evidence(findings[i], index, begin, end, at++, nullptr));
      continue;
    }
    PlannedOrigins its = plan_origins(tensors, shown, origins[origin], begin, end);
    its.index = static_cast<std::uint32_t>(origin);
    its.at = origins_at + origin++;
    its.decided = launch_evidence(findings[i], index, begin, end, at++, its.status ? &its : nullptr).is_ok();
    launch_origins(its);
  }
  if (updates != nullptr) launch_updates(*updates, at);
  for (; origin < origins.size(); ++origin) {
    PlannedOrigins its = plan_origins(tensors, shown, origins[origin], begin, end);
    its.index = static_cast<std::uint32_t>(origin);
    its.at = origins_at + origin;
    launch_origins(its);
  }
  at = origins_at + origins.size();
  head_ = at;
  entries_[next_ % entries_.size()] = {begin, at, false};
  return next_++;
}

namespace {

bool has_rows_in_order(const TensorView& tensor) {  // and contents
  return tensor.is_contiguous() && (tensor.data != nullptr || tensor.numel() == 0);
}

}  // namespace

DeviceReadings::Ticket DeviceReadings::look(std::span<const TensorView> tensors, std::size_t made) noexcept {
  counts_.tensors += made;
  const auto refuse = [&](const char* why) {
    lose(made, why);
    return Ticket{0};
  };
  try {
    tensors = tensors.first(std::min(tensors.size(), kTensorsInParameters));
    if (failed_) return refuse("the device failed");
    // Their records lie together: the end of the slots is left out.
    const std::uint64_t room = slots_.size() - head_ % slots_.size();
    const std::uint64_t pad = room < tensors.size() ? room : 0;
    if (made == 0 || made > tensors.size() || !make_room(pad + tensors.size()))
      return refuse("there was no room for more results under way");
    const std::uint64_t begin = head_;
    for (std::uint64_t at = begin; at < begin + pad; ++at) slot(at) = {.index = ~std::uint32_t{0}};
    std::uint64_t at = begin + pad, items = 0;
    const std::uint64_t first = at;
    std::size_t looked = 0;
    gathered_.clear();
    others_.clear();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const TensorView& tensor = tensors[i];
      const std::uint64_t more = stats_items(static_cast<std::uint64_t>(tensor.numel()) * dtype_size(tensor.dtype));
      if (!has_rows_in_order(tensor) || items + more > options_.max_items) {
        if (i < made) others_.push_back(static_cast<std::uint32_t>(i));
        continue;
      }
      items += more;
      looked += i < made;
      slot(at++) = {.index = static_cast<std::uint32_t>(i)};
      gathered_.push_back({tensor.data, tensor.numel(), tensor.dtype, 0});
    }
    if (looked > 0) {
      const Status status = port_->look(gathered_, looked, first % slots_.size());
      counts_.launches += 2;
      for (std::uint64_t its = first; its < at; ++its) slot(its).launched = status.is_ok();
      if (!status) lose(looked, status.message());
    }
    for (const std::uint32_t i : others_) {
      Slot& mine = slot(at);
      mine = {.index = i};
      const Result<DeviceStatsView> view = plan_device_view(tensors[i], mine.repeats);
      const Status status = view ? port_->launch(*view, 0, at % slots_.size()) : view.status();
      counts_.launches += view ? 1 : 0;
      mine.launched = status.is_ok();
      if (!status) lose(1, status.message());
      ++at;
    }
    head_ = at;
    entries_[next_ % entries_.size()] = {begin, at, false};
    return next_++;
  } catch (...) {  // no memory
    counts_.lost += made;
    return 0;
  }
}

// Reads tensors without gaps, all in as few launches as take them; the others are left in others_. Gives where the next
// result goes.
std::uint64_t DeviceReadings::gather(std::span<const TensorView> tensors, std::uint64_t at) {
  std::uint64_t launched = at, items = 0;
  gathered_.clear();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorView& tensor = tensors[i];
    if (!has_rows_in_order(tensor)) {
      others_.push_back(static_cast<std::uint32_t>(i));
      continue;
    }
    const std::int64_t count = tensor.numel();
    const std::uint64_t more = stats_items(static_cast<std::uint64_t>(count) * dtype_size(tensor.dtype));
    const bool wraps = at % slots_.size() == 0;
    if (!gathered_.empty() &&
        (wraps || gathered_.size() == kTensorsInParameters || items + more > options_.max_items)) {
      launch_gathered(launched);
      launched = at;
      items = 0;
    }
    items += more;
    slot(at) = {.index = static_cast<std::uint32_t>(i)};
    gathered_.push_back({tensor.data, count, tensor.dtype, 0});
    ++at;
  }
  launch_gathered(launched);
  return at;
}

// Tensors in their order; each run of those without gaps that a launch may take fills records, one with gaps has a
// record of its own. Gives the number of records.
std::uint64_t DeviceReadings::plan_checks(std::span<const TensorView> tensors,
                                          std::span<const std::uint32_t> references) {
  checked_.clear();
  std::uint64_t records = 0, run = 0, items = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Result<CheckedView> view = plan_check(tensors[i]);
    checked_.push_back({{view ? *view : CheckedView{.size = 0}, references[i]}, false});
    Planned& planned = checked_.back();
    if (planned.has_gaps()) {
      run = 0;
      ++records;
      continue;
    }
    const std::uint64_t more = stats_items(planned.tensor.view.count * planned.tensor.view.size);
    if (run > 0 && items + more > options_.max_items) run = 0;
    planned.joins = run > 0;
    items = run > 0 ? items + more : more;
    if (run++ % kChecksInRecord == 0) ++records;
  }
  return records;
}

// Checks all, from `at` on; what has no gaps is read in the same pass, to places from `stats` on, the others are left
// in others_. Gives where the next result goes.
std::uint64_t DeviceReadings::launch_checksum_stats(std::span<const TensorView> tensors, std::uint64_t at,
                                           std::uint64_t stats) {
  for (std::size_t i = 0; i < checked_.size();) {
    const std::size_t first = i;
    const std::uint64_t first_stats = stats;
    Status status(StatusCode::kUnsupported, "a view of too many dimensions to be checked");
    if (checked_[i].has_gaps()) {
      others_.push_back(static_cast<std::uint32_t>(i));
      if (checked_[i].tensor.view.size != 0) {
        status = port_->launch(checked_[i].tensor, at % slots_.size());
        ++counts_.launches;
      }
      ++i;
    } else {
      const std::size_t room = (slots_.size() - at % slots_.size()) * kChecksInRecord;
      batch_.clear();
      do {
        const CheckedTensor& checked = checked_[i].tensor;  // of a broadcast, what there is
        ChecksumStatsTensor entry{{reinterpret_cast<const void*>(checked.view.data),
                             static_cast<std::int64_t>(checked.view.count), tensors[i].dtype, checked.reference}};
        if (has_rows_in_order(tensors[i])) {
          slot(stats) = {.index = static_cast<std::uint32_t>(i), .is_checked = true};
          entry.slot = static_cast<std::uint32_t>(stats++ % slots_.size());
        } else {
          others_.push_back(static_cast<std::uint32_t>(i));
        }
        batch_.push_back(entry);
        ++i;
      } while (batch_.size() < std::min(kChecksInParameters, room) && i < checked_.size() && checked_[i].joins);
      status = port_->launch(batch_, at % slots_.size());
      ++counts_.launches;
    }
    for (std::size_t k = first; k < i; k += kChecksInRecord, ++at) {
      slot(at) = {.index = static_cast<std::uint32_t>(k),
                  .launched = status.is_ok(),
                  .holds = Slot::Holds::kChecks,
                  .checks = static_cast<std::uint8_t>(std::min<std::size_t>(i - k, kChecksInRecord))};
      if (!status) lose(1, status.message());
    }
    for (std::uint64_t its = first_stats; its < stats; ++its) slot(its).launched = status.is_ok();
    if (!status) lose(stats - first_stats, status.message());
  }
  return stats;
}

// The statistics of its output lie somewhere from `begin` to `end`.
Status DeviceReadings::launch_evidence(const EvidenceCall& call, std::uint32_t index, std::uint64_t begin,
                                       std::uint64_t end, std::uint64_t at, const PlannedOrigins* origins) {
  Slot& mine = slot(at);
  mine = {.index = index, .holds = Slot::Holds::kFindings};
  std::uint64_t its = begin;
  while (its < end && (slot(its).index != call.of || slot(its).holds != Slot::Holds::kStats)) ++its;
  Status status(StatusCode::kUnsupported, "what the output holds is not known");
  if (its < end && slot(its).launched) {
    status = port_->launch(call, its % slots_.size(), at % slots_.size(), origins == nullptr ? nullptr : &origins->plan,
                           origins == nullptr ? 0 : origins->at % slots_.size());
    ++counts_.launches;
  }
  mine.launched = status.is_ok();
  if (!status) lose(1, status.message());
  return status;
}

DeviceReadings::PlannedOrigins DeviceReadings::plan_origins(std::span<const TensorView> tensors,
                                                          std::span<const TensorView> shown, const OriginCall& call,
                                                          std::uint64_t begin, std::uint64_t end) {
  PlannedOrigins origins;
  OriginPlan& plan = origins.plan;
  plan.call = call;
  for (std::uint32_t i = 0; i < call.outputs; ++i) {
    std::uint64_t its = begin;
    while (its < end && (slot(its).index != call.output[i] || slot(its).holds != Slot::Holds::kStats)) ++its;
    if (its == end || !slot(its).launched) {
      origins.status = {StatusCode::kUnsupported, "what an output holds is not known"};
      return origins;
    }
    plan.call.output[i] = static_cast<std::uint32_t>(its % slots_.size());
  }
  for (std::uint32_t k = 0; k < call.tensors; ++k) {
    const std::uint32_t number = call.tensor[k] & ~kShownOnly;
    const TensorView& tensor = (call.tensor[k] & kShownOnly) != 0 ? shown[number] : tensors[number];
    Result<DeviceStatsView> view = plan_device_view(tensor, plan.repeats[k]);
    if (!view) {
      origins.status = view.status();
      return origins;
    }
    origins.views[k] = *view;
    plan.words[k] = kStatsRecordWords + static_cast<std::uint32_t>(kDetailThresholds) +
                    static_cast<std::uint32_t>(format_codes(tensor.dtype).binades());
  }
  return origins;
}

void DeviceReadings::launch_origins(PlannedOrigins& origins) {
  const std::uint32_t tensors = origins.plan.call.tensors;
  Slot& mine = slot(origins.at);
  mine = {.index = origins.index, .holds = Slot::Holds::kOrigins, .checks = static_cast<std::uint8_t>(tensors)};
  if (origins.status && !origins.decided) {
    origins.status = port_->launch(origins.plan, origins.at % slots_.size());
    ++counts_.launches;
  }
  if (origins.status) {
    origins.status = port_->launch(std::span(origins.views).first(tensors));
    ++counts_.launches;
  }
  mine.launched = origins.status.is_ok();
  if (!origins.status) lose(1, origins.status.message());
}

void DeviceReadings::copy_origins(const Slot& slot, const DeviceStatsRecord* record, ReadingExtras& extras) {
  if (!slot.launched) return;
  DeviceOrigins found;
  std::memcpy(static_cast<void*>(&found), record, sizeof found);
  if (found.born == 0) return;
  extras.histograms.resize(std::max<std::size_t>(extras.histograms.size(), slot.index + 1));
  std::vector<std::optional<TensorStats>>& histograms = extras.histograms[slot.index];
  histograms.resize(slot.checks);
  for (std::uint32_t k = 0; k < slot.checks; ++k) {
    if (found.place[k] == 0) continue;
    const std::uint64_t* at = port_->arena() + found.place[k] - 1;
    DeviceStatsRecord its;
    std::memcpy(static_cast<void*>(&its), at, sizeof its);
    histograms[k] = stats_of_record(its, at + kStatsRecordWords, found.repeats[k]);
  }
}

void DeviceReadings::launch_updates(const UpdatesCall& call, std::uint64_t at) {
  Slot& mine = slot(at);
  mine = {.holds = Slot::Holds::kUpdates};
  const Status status = port_->launch(call, at % slots_.size());
  ++counts_.launches;
  mine.launched = status.is_ok();
  if (!status) lose(1, status.message());
}

void DeviceReadings::launch_gathered(std::uint64_t first) {
  if (gathered_.empty()) return;
  const Status status = port_->launch(gathered_, first % slots_.size());
  ++counts_.launches;
  for (std::uint64_t position = first; position < first + gathered_.size(); ++position) {
    slot(position).launched = status.is_ok();
  }
  if (!status) lose(gathered_.size(), status.message());
  gathered_.clear();
}

void DeviceReadings::hand_over() noexcept {
  try {
    if (handed_ == head_ || failed_) return;
    if (next_mark_ - oldest_mark_ == marks_.size()) look_for_arrivals();
    if (failed_) return;
    if (next_mark_ - oldest_mark_ == marks_.size()) {  // the next copy takes this along
      ++counts_.copies_put_off;
      return;
    }
    Status status;
    for (std::uint64_t at = handed_; at < head_ && status;) {
      const std::uint64_t first = at % slots_.size();
      const std::uint64_t count = std::min<std::uint64_t>(head_ - at, slots_.size() - first);
      status = port_->copy(first, count);
      at += count;
    }
    const std::size_t which = next_mark_ % marks_.size();
    if (status) status = port_->mark(which);
    if (!status) return fail(status);
    ++counts_.copies;
    marks_[which] = head_;
    ++next_mark_;
    handed_ = head_;
  } catch (...) {  // no memory: the next copy takes this along
    ++counts_.copies_put_off;
  }
}

void DeviceReadings::look_for_arrivals() {
  while (oldest_mark_ < next_mark_ && !failed_) {
    const std::size_t which = oldest_mark_ % marks_.size();
    const ReadingsPort::Mark state = port_->look(which);
    if (state == ReadingsPort::Mark::kPending) return;
    if (state == ReadingsPort::Mark::kFailed) {
      return fail(Status(StatusCode::kUnsupported, "the device failed before results were copied"));
    }
    arrived_ = marks_[which];
    ++oldest_mark_;
  }
}

void DeviceReadings::copy_checks(const Slot& slot, const DeviceStatsRecord* record, ReadingExtras& extras) {
  extras.checks.resize(std::max<std::size_t>(extras.checks.size(), slot.index + slot.checks));
  if (!slot.launched) return;
  DeviceChecks found;
  std::memcpy(static_cast<void*>(&found), record, sizeof found);
  for (std::uint32_t i = 0; i < slot.checks; ++i) {
    extras.checks[slot.index + i] = Checked{found.checksum[i], found.differs[i] != 0};
  }
}

DeviceReadings::Entry* DeviceReadings::find(Ticket ticket) {
  if (ticket < oldest_ || ticket >= next_) return nullptr;
  Entry& entry = entries_[ticket % entries_.size()];
  return entry.done ? nullptr : &entry;
}

ReadingsState DeviceReadings::fetch(Entry& entry, std::span<std::optional<TensorStats>> out,
                                    ReadingExtras* extras) {
  for (auto& one : out) one.reset();
  if (extras != nullptr) *extras = {};
  ReadingExtras mere_checks;  // they come before what they decide
  if (extras == nullptr) extras = &mere_checks;
  for (std::uint64_t position = entry.begin; position < entry.end; ++position) {
    const Slot& mine = slot(position);
    const DeviceStatsRecord* record = port_->records() + position % slots_.size();
    if (mine.holds != Slot::Holds::kStats) {
      const auto copy = [&](auto& found) { std::memcpy(static_cast<void*>(&found), record, sizeof found); };
      if (mine.holds == Slot::Holds::kFindings) {
        extras->findings.resize(std::max<std::size_t>(extras->findings.size(), mine.index + 1));
        if (mine.launched) copy(extras->findings[mine.index].emplace());
      } else if (mine.holds == Slot::Holds::kChecks) {
        copy_checks(mine, record, *extras);
      } else if (mine.holds == Slot::Holds::kOrigins) {
        copy_origins(mine, record, *extras);
      } else if (mine.launched) {
        copy(extras->updates.emplace());
      }
      if (!mine.launched) continue;
      ++counts_.delivered;
      continue;
    }
    if (!mine.launched || mine.index >= out.size()) continue;
    ++counts_.delivered;
    // Without its check it is not known whether the record was written.
    const auto& checks = extras->checks;
    if (mine.is_checked && !(mine.index < checks.size() && checks[mine.index] && checks[mine.index]->differs)) continue;
    out[mine.index] = stats_of_record(*record, nullptr, mine.repeats);
  }
  entry.done = true;
  advance_tail();
  return ReadingsState::kReady;
}

ReadingsState DeviceReadings::poll(Ticket ticket, std::span<std::optional<TensorStats>> out,
                                   ReadingExtras* extras) noexcept {
  const std::uint64_t delivered = counts_.delivered;
  try {
    Entry* entry = find(ticket);
    if (entry == nullptr) return ReadingsState::kLost;
    if (entry->end > arrived_) look_for_arrivals();
    if (entry->done) return ReadingsState::kLost;  // by a failure
    return entry->end > arrived_ ? ReadingsState::kPending : fetch(*entry, out, extras);
  } catch (...) {  // no memory: there may be some the next time
    counts_.delivered = delivered;
    return ReadingsState::kPending;
  }
}

ReadingsState DeviceReadings::wait(Ticket ticket, std::span<std::optional<TensorStats>> out,
                                   ReadingExtras* extras) noexcept {
  const std::uint64_t delivered = counts_.delivered;
  try {
    Entry* entry = find(ticket);
    if (entry == nullptr) return ReadingsState::kLost;
    look_for_arrivals();
    while (!failed_ && entry->end > arrived_) {
      hand_over();
      if (failed_ || oldest_mark_ == next_mark_) break;
      // Where all copies are under way, the oldest is waited for before this one's begins.
      std::uint64_t mark = oldest_mark_;
      while (mark + 1 < next_mark_ && entry->end <= handed_ && marks_[mark % marks_.size()] < entry->end) ++mark;
      ++counts_.waits;
      if (const Status status = port_->wait(mark % marks_.size()); !status) {
        fail(status);
        break;
      }
      look_for_arrivals();
      if (oldest_mark_ > mark) continue;
      entry->done = true;  // it was waited for, and is not there
      lose(entry->end - entry->begin, "results did not come");
      break;
    }
    if (entry->done) return ReadingsState::kLost;
    return entry->end > arrived_ ? ReadingsState::kPending : fetch(*entry, out, extras);
  } catch (...) {  // no memory: whoever waited does not ask again
    counts_.delivered = delivered;
    if (Entry* entry = find(ticket); entry != nullptr) {
      entry->done = true;
      counts_.lost += entry->end - entry->begin;
      advance_tail();
    }
    return ReadingsState::kLost;
  }
}

void DeviceReadings::drop(Ticket ticket) noexcept {
  Entry* entry = find(ticket);
  if (entry == nullptr) return;
  entry->done = true;
  counts_.dropped += entry->end - entry->begin;
}

}  // namespace nanhunt::kernels
