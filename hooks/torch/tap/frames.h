// SPDX-License-Identifier: Apache-2.0
// The line of the user's code: the nearest frame of Python's outside of torch and of nanhunt.
#pragma once

#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "hooks/torch/tap/python.h"
#include "hooks/torch/tap/recording.h"
#include "hooks/torch/tap/sources.h"

namespace nanhunt::tap {

class Frames {
 public:
  static constexpr std::int64_t kImporting = -1;  // what runs is an import, which is not the user's computing

  // `theirs`: starts of file names that are not the user's.
  Frames(const Recording& to, std::recursive_mutex& mutex, std::vector<std::string> theirs)
      : to_(to), mutex_(mutex), theirs_(std::move(theirs)), sources_(to) {
    find_python(ensure_, "PyGILState_Ensure");
    find_python(release_, "PyGILState_Release");
    find_python(thread_, "PyThreadState_Get");
    find_python(frame_of_, "PyThreadState_GetFrame");
    find_python(back_, "PyFrame_GetBack");
    find_python(code_, "PyFrame_GetCode");
    find_python(line_, "PyFrame_GetLineNumber");
    find_python(last_, "PyFrame_GetLasti");
    find_python(attribute_, "PyObject_GetAttrString");
    find_python(utf8_, "PyUnicode_AsUTF8");
    find_python(clear_, "PyErr_Clear");
    find_python(inc_, "Py_IncRef");
    find_python(dec_, "Py_DecRef");
    usable_ = ensure_ && release_ && thread_ && frame_of_ && back_ && code_ && line_ && attribute_ && utf8_ &&
              clear_ && inc_ && dec_;
  }

  // The number of the text "file.py:12"; 0: there is none. Takes Python's lock, which guards what is kept here: never
  // called by who holds the tap's mutex, which may be waited for under that lock. `in_backward`: of what runs inside of
  // the backward at hand, not of who called that.
  std::int64_t here(bool in_backward = false) {
    if (!usable_) return 0;
    int held = ensure_();
    std::int64_t site = 0;
    NewLine found;
    void* frame = frame_of_(thread_());
    while (frame != nullptr) {
      void* code = code_(frame);
      Code& known = codes_[code];
      if (!known.known) learn(code, known);  // keeps the code, so its address stays its own
      if (in_backward && known.runs_backward) {
        dec_(code);
        break;
      }
      if (known.kind == Kind::kTraced && traced(code, known, frame, found, site)) {
        dec_(code);
        break;
      }
      // A package's own backward: the line that called its forward says more.
      if (known.kind > Kind::kTraced && (!in_backward || known.kind == Kind::kUser)) {
        site = known.kind == Kind::kImport ? kImporting : line(code, known, frame, found);
        dec_(code);
        break;
      }
      dec_(code);
      void* back = back_(frame);
      dec_(frame);
      frame = back;
    }
    std::vector<SourceFrame> above;
    std::vector<Spot> callers;
    if (!found.text.empty() && !found.traced && sources_.claim(found.text)) {
      above = stack(frame);
      callers = callers_of(frame);
    } else if (found.compares && !in_backward && reported_anew_ < kMostAnew && is_called_anew(found.called, frame)) {
      above = stack(frame);
    }
    if (frame != nullptr) dec_(frame);
    release_(held);
    if (found.text.empty()) {
      if (!above.empty() && report_stack(site, above)) ++reported_anew_;
      return site;
    }
    // Not under Python's lock: whoever has the tap's mutex may wait for that (a device's stream is asked of Python).
    {
      const std::lock_guard lock(mutex_);
      site = std::max<std::int64_t>(0, to_.text(to_.self, found.text.c_str()));
      if (!above.empty()) sources_.report(found.text, above);
      new_site_ = names_[site] = found.text;
      if (found.traced) traced_.insert(site);
    }
    held = ensure_();
    number(found.called, {site, 0, std::move(callers)});
    release_(held);
    return site;
  }

  // The functions that run now above a site: of its first call they are told in any case, of another one where that comes
  // from elsewhere, and once more where badness began. Takes Python's lock, as here().
  void report_stack(std::int64_t site) noexcept {
    if (!usable_ || reported_again_ >= kMostAgain) return;
    try {
      const int held = ensure_();
      void* frame = frame_of_(thread_());
      const std::vector<SourceFrame> above = stack(frame);
      if (frame != nullptr) dec_(frame);
      release_(held);
      if (report_stack(site, above)) ++reported_again_;
    } catch (const std::exception&) {  // no memory for it: the first call's are there
    }
  }

  // The site that was met for the first time since this was asked last; "": none. The tap's mutex is held.
  std::string take_new_site() { return std::exchange(new_site_, {}); }

  // "file.py:12", of a number that here() gave; "": none. The tap's mutex is held.
  std::string_view name_of(std::int64_t site) const {
    const auto known = names_.find(site);
    return known == names_.end() ? std::string_view() : known->second;
  }

  // Lets go of the codes that were met. Python's lock is held.
  void forget() {
    if (!usable_) return;
    const int held = ensure_();
    for (const auto& [code, known] : codes_) dec_(code);
    codes_.clear();
    called_.clear();
    release_(held);
  }

 private:
  static constexpr int kMostAgain = 256, kMostAnew = 2048;
  static constexpr std::uint32_t kMostCompared = 64;
  int reported_again_ = 0, reported_anew_ = 0;
  // kTraced: written by torch.fx, of the user's lines. kInstalled: of a package, which may call an op for the user's
  // line as a wrapper does.
  enum class Kind : std::uint8_t { kTheirs, kTraced, kImport, kInstalled, kUser };
  // A function that runs, and where it stands.
  struct Spot {
    void* code = nullptr;
    int at = 0;
    bool operator==(const Spot&) const = default;
  };
  // `callers`: functions above it, innermost first, as far as its calls have them in common.
  struct Site {
    std::int64_t number = 0;
    std::uint32_t calls = 0;  // of which the callers were compared
    std::vector<Spot> callers;
  };
  struct Code {
    bool known = false;
    bool runs_backward = false;  // PyTorch's own: the engine is called in it
    Kind kind = Kind::kTheirs;
    std::string file;                                     // what it is called
    ska::flat_hash_map<int, Site> sites;                  // by instruction, or by line where Python does not say
  };

  // False: nothing is known to report it of.
  bool report_stack(std::int64_t site, const std::vector<SourceFrame>& above) {
    const std::lock_guard lock(mutex_);
    const auto known = names_.find(site);
    if (known == names_.end() || above.empty() || traced_.contains(site)) return false;
    sources_.report(known->second, above);
    return true;
  }

  // As package_path of src/core/text.h.
  static bool is_installed(std::string_view file) {
    for (const std::string_view folder : {"/site-packages/", "/dist-packages/"})
      if (file.find(folder) != file.npos) return true;
    constexpr std::string_view kPython = "/lib/python";  // Python's own: "/usr/lib/python3.11/contextlib.py"
    const std::size_t at = file.find(kPython);
    const std::size_t end = at == file.npos ? at : file.find_first_not_of("0123456789.", at + kPython.size());
    return end != file.npos && end != at + kPython.size() && file[end] == '/';
  }

  // Asking Python may let other threads run, which may learn it as well.
  void learn(void* code, Code& into) {
    Code learnt;
    void* name = attribute_(code, "co_filename");
    const char* text = name != nullptr ? utf8_(name) : nullptr;
    if (text == nullptr) {
      clear_();
    } else {
      const std::string_view file = text;
      learnt.kind = Kind::kUser;
      if (file.rfind("<frozen importlib", 0) == 0) {
        learnt.kind = Kind::kImport;
      } else {
        if (is_installed(file)) learnt.kind = Kind::kInstalled;
        for (const std::string& start : theirs_)
          if (file.rfind(start, 0) == 0) learnt.kind = Kind::kTheirs;
        if (file.rfind("<eval_with_key", 0) == 0) learnt.kind = Kind::kTraced;
      }
      if (learnt.kind == Kind::kTraced) learnt.file = text;
      if (learnt.kind >= Kind::kInstalled) learnt.file = shown(text);
      learnt.runs_backward =
          file.ends_with("torch/autograd/graph.py") && attribute_text(code, "co_name") == "_engine_run_backward";
    }
    if (name != nullptr) dec_(name);
    if (into.known) return;
    learnt.known = true;
    into = std::move(learnt);
    inc_(code);
  }

  std::string shown(const char* file) const {
    std::string text(512, '\0');
    const std::int64_t size = to_.file != nullptr ? to_.file(file, text.data(), static_cast<std::int64_t>(text.size())) : 0;
    if (size <= 0) return file;
    text.resize(static_cast<std::size_t>(size));
    return text;
  }

  // The user's functions from this frame outwards, innermost first. Where those of packages take all of the room, the
  // nearest of the user's own is the last. Python's lock is held.
  std::vector<SourceFrame> stack(void* innermost) {
    std::vector<SourceFrame> out;
    bool own = false;
    each_outwards(innermost, [&](void* code, const Code& known, void* frame) {
      const bool full = out.size() == Sources::kMaxFrames;
      own = own || known.kind == Kind::kUser;
      if (known.kind == Kind::kUser || (known.kind == Kind::kInstalled && !full)) {
        if (full) out.pop_back();
        SourceFrame one;
        one.file = attribute_text(code, "co_filename");
        one.function = attribute_text(code, "co_qualname");
        if (one.function.empty()) one.function = attribute_text(code, "co_name");
        one.line = static_cast<std::uint32_t>(std::max(0, line_(frame)));
        sources_.read(one);
        if (known.file.starts_with("In[")) one.file = known.file;  // a cell of a notebook, by its number
        out.push_back(std::move(one));
      }
      return out.size() < Sources::kMaxFrames || !own;
    });
    return out;
  }

  // A frame and those that called it, as long as `take` wants more. Python's lock is held.
  template <typename Take>
  void each_outwards(void* innermost, Take&& take) {
    void* frame = innermost;
    if (frame != nullptr) inc_(frame);
    while (frame != nullptr) {
      void* code = code_(frame);
      Code& known = codes_[code];
      if (!known.known) learn(code, known);
      const bool more = take(code, known, frame);
      dec_(code);
      void* back = more ? back_(frame) : nullptr;
      dec_(frame);
      frame = back;
    }
  }

  std::string attribute_text(void* of, const char* name) {
    void* value = attribute_(of, name);
    const char* text = value != nullptr ? utf8_(value) : nullptr;
    if (text == nullptr) clear_();
    std::string out = text == nullptr ? "" : text;
    if (value != nullptr) dec_(value);
    return out;
  }

  // A line of a package is another place for each line that called it.
  struct Called {
    Spot inner, from;
    bool operator==(const Called&) const = default;
  };
  struct HashOfCalled {
    std::size_t operator()(const Called& c) const {
      const auto mixed = [](std::size_t seed, const Spot& s) {
        return (seed * 31 + std::hash<void*>()(s.code)) * 31 + static_cast<std::size_t>(s.at);
      };
      return mixed(mixed(7, c.inner), c.from);
    }
  };
  struct NewLine {
    Called called;
    std::string text;
    bool traced = false;    // its frames are known: they do not run now
    bool compares = false;  // it has a number, and its callers are compared
  };
  static constexpr int kWrapper = 6;  // frames from an op's line in a package to the user's own, PyTorch's included

  Spot spot(void* code, void* frame) const { return {code, last_ != nullptr ? last_(frame) : line_(frame)}; }

  // A line that has no number yet is put into `found`.
  std::int64_t line(void* code, const Code& known, void* frame, NewLine& found) {
    Called called{spot(code, frame), {}};
    if (known.kind == Kind::kInstalled) called.from = caller_of(frame, nullptr);
    if (const Site* site = site_of(called); site != nullptr) {
      found.compares = site->calls < kMostCompared && !site->callers.empty();
      if (found.compares) found.called = called;
      return site->number;
    }
    found = {called, known.file + ":" + std::to_string(line_(frame))};
    if (called.from.code != nullptr) caller_of(frame, &found.text);
    return 0;
  }

  // The line that code of torch.fx's was traced from, as line(); false: nobody knows.
  bool traced(void* code, const Code& known, void* frame, NewLine& found, std::int64_t& site) {
    const Called called{spot(code, frame), {}};
    if (const Site* met = site_of(called); met != nullptr) {
      site = met->number;
      return site > 0;
    }
    const std::string written = known.file + ":" + std::to_string(line_(frame));
    std::string text = shown(written.c_str());
    if (text == written) {
      number(called, {});
      return false;
    }
    found = {called, std::move(text), true};
    return true;
  }

  Site* site_of(const Called& called) {
    if (called.from.code != nullptr) {
      const auto known = called_.find(called);
      return known != called_.end() ? &known->second : nullptr;
    }
    auto& sites = codes_[called.inner.code].sites;
    const auto known = sites.find(called.inner.at);
    return known != sites.end() ? &known->second : nullptr;
  }

  void number(const Called& called, Site site) {
    if (called.from.code == nullptr) {
      codes_[called.inner.code].sites[called.inner.at] = std::move(site);
    } else if (called_.size() < kMostCalled) {
      called_[called] = std::move(site);
    }
  }

  // Whether this call of a known site comes from where none of those before came from. Only so many are compared.
  bool is_called_anew(const Called& called, void* frame) {
    const std::vector<Spot> now = callers_of(frame);
    Site* const site = site_of(called);  // asked for after Python was, which may let other threads number lines
    if (site == nullptr) return false;
    ++site->calls;
    const auto [end, unused] = std::mismatch(site->callers.begin(), site->callers.end(), now.begin(), now.end());
    if (end == site->callers.end()) return false;
    site->callers.erase(end, site->callers.end());
    return true;
  }
  // As stack() goes, without the innermost.
  std::vector<Spot> callers_of(void* innermost) {
    std::vector<Spot> out;
    each_outwards(innermost, [&](void* code, const Code& known, void* frame) {
      if (frame != innermost && known.kind >= Kind::kInstalled) out.push_back(spot(code, frame));
      return out.size() + 1 < Sources::kMaxFrames;
    });
    return out;
  }

  // The nearest line of the user's own above a frame of a package, which `text` is to name as well.
  Spot caller_of(void* innermost, std::string* text) {
    Spot found;
    int above = -1;  // of frames
    each_outwards(innermost, [&](void* code, const Code& known, void* frame) {
      if (++above > 0 && known.kind == Kind::kUser) {
        found = spot(code, frame);
        if (text != nullptr) text->append(" called at ").append(known.file + ":" + std::to_string(line_(frame)));
      }
      return above < kWrapper && found.code == nullptr;
    });
    return found;
  }

  const Recording& to_;
  std::recursive_mutex& mutex_;
  std::vector<std::string> theirs_;
  Sources sources_;
  std::string new_site_;
  std::unordered_map<std::int64_t, std::string> names_;  // of sites
  std::unordered_set<std::int64_t> traced_;
  std::unordered_map<void*, Code> codes_;
  static constexpr std::size_t kMostCalled = 65536;
  std::unordered_map<Called, Site, HashOfCalled> called_;
  bool usable_ = false;
  int (*ensure_)() = nullptr;
  void (*release_)(int) = nullptr;
  void* (*thread_)() = nullptr;
  void* (*frame_of_)(void*) = nullptr;
  void* (*back_)(void*) = nullptr;
  void* (*code_)(void*) = nullptr;
  int (*line_)(void*) = nullptr;
  int (*last_)(void*) = nullptr;
  void* (*attribute_)(void*, const char*) = nullptr;
  const char* (*utf8_)(void*) = nullptr;
  void (*clear_)() = nullptr;
  void (*inc_)(void*) = nullptr;
  void (*dec_)(void*) = nullptr;
};

}  // namespace nanhunt::tap
