// SPDX-License-Identifier: Apache-2.0
// W&B: the records of a run, written offline or before they were sent, and the files beside them.
#include <utility>

#include "src/autopsy/framed_records.h"
#include "src/autopsy/loose_json.h"
#include "src/autopsy/protobuf_fields.h"
#include "src/autopsy/readers/log_row.h"
#include "src/autopsy/readers/reader.h"

namespace nanhunt::autopsy {
namespace {

using Wire = ProtobufField::Wire;

struct WandbItem {
  std::string key;
  std::string_view json;
};

WandbItem item_of(std::string_view message) {
  WandbItem item;
  std::string nested;
  ProtobufFields fields(message);
  for (ProtobufField field; fields.next(field);) {
    if (field.wire != Wire::kBytes) continue;
    if (field.number == 1) item.key = field.bytes;
    if (field.number == 2 && nested.size() < 1000) {
      if (!nested.empty()) nested += '.';
      nested += field.bytes;
    }
    if (field.number == 16) item.json = field.bytes;
  }
  if (!nested.empty()) item.key = std::move(nested);
  return item;
}

// Calls visit(path, value) for each value of an item, which may be an object.
void visit_values(const WandbItem& item, const LooseVisitor& visit) {
  std::string path;
  static_cast<void>(read_loose_json(item.json, [&](std::string_view below, const LooseValue& value) {
    path = item.key;
    if (!below.empty()) path.append(".").append(below);
    visit(path, value);
  }));
}

void read_history(std::string_view message, LogRows& rows) {
  ProtobufFields fields(message);
  for (ProtobufField field; fields.next(field);) {
    if (field.wire != Wire::kBytes) continue;
    if (field.number == 1) {
      visit_values(item_of(field.bytes), [&](std::string_view path, const LooseValue& value) {
        if (value.kind == LooseValue::Kind::kNumber) rows.add(path, value.number);
        // A number that JSON has no word for may be in quotes.
        if (value.kind == LooseValue::Kind::kText) {
          if (const auto number = parse_number(value.text)) rows.add(path, *number);
        }
      });
    } else if (field.number == 2) {
      double step = 0;  // protobuf leaves out a 0
      ProtobufFields inside(field.bytes);
      for (ProtobufField one; inside.next(one);) {
        if (one.number == 1) step = static_cast<double>(one.value);
      }
      rows.set_step(step);
    }
  }
  rows.end();
}

void read_config(std::string_view message, EvidenceBuilder& out) {
  ProtobufFields fields(message);
  for (ProtobufField field; fields.next(field);) {
    if (field.number != 1 || field.wire != Wire::kBytes) continue;
    visit_values(item_of(field.bytes),
                 [&](std::string_view path, const LooseValue& value) { out.add_setting(path, value.text); });
  }
}

void use_command(std::string executable, std::string program, std::vector<std::string> arguments,
                 EvidenceBuilder& out) {
  if (program.empty()) return;
  std::vector<std::string> command{executable.empty() ? "python" : std::move(executable), std::move(program)};
  for (std::string& argument : arguments) command.push_back(std::move(argument));
  out.set_command(std::move(command));
}

void read_environment(std::string_view message, EvidenceBuilder& out) {
  std::string program, executable;
  std::vector<std::string> arguments;
  ProtobufFields fields(message);
  for (ProtobufField field; fields.next(field);) {
    if (field.wire != Wire::kBytes) continue;
    if (field.number == 5 && arguments.size() < 1000) arguments.emplace_back(field.bytes);
    if (field.number == 6) program = field.bytes;
    if (field.number == 14) executable = field.bytes;
  }
  use_command(std::move(executable), std::move(program), std::move(arguments), out);
}

void read_wandb_record(std::string_view record, LogRows& rows, EvidenceBuilder& out) {
  ProtobufFields fields(record);
  for (ProtobufField field; fields.next(field);) {
    if (field.wire != Wire::kBytes) continue;
    if (field.number == 2) read_history(field.bytes, rows);
    if (field.number == 5) read_config(field.bytes, out);
    if (field.number == 26) read_environment(field.bytes, out);
    if (field.number == 17) {
      ProtobufFields run(field.bytes);
      for (ProtobufField one; run.next(one);) {
        if (one.number == 4 && one.wire == Wire::kBytes) read_config(one.bytes, out);
      }
    }
  }
  if (fields.damaged()) out.set_damage("a record is no valid message");
}

}  // namespace

void read_wandb(std::string_view file, std::string_view, EvidenceBuilder& out) {
  LogRows rows(out);
  out.set_damage(read_wandb_log(file, [&](std::string_view record) { read_wandb_record(record, rows, out); }));
}

void read_wandb_metadata(std::string_view file, std::string_view, EvidenceBuilder& out) {
  std::string program, executable;
  std::vector<std::string> arguments;
  const LooseEnd end = read_loose_json(file, [&](std::string_view path, const LooseValue& value) {
    if (value.kind != LooseValue::Kind::kText) return;
    if (path == "program") program = unescape(value.text);
    if (path == "executable") executable = unescape(value.text);
    if (path.starts_with("args.") && arguments.size() < 1000) arguments.push_back(unescape(value.text));
  });
  if (!end.whole) {
    out.set_damage("it is no valid JSON at byte " + std::to_string(end.length));
    return;  // half of a command line is none
  }
  use_command(std::move(executable), std::move(program), std::move(arguments), out);
}

}  // namespace nanhunt::autopsy
