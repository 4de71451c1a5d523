// SPDX-License-Identifier: MIT
#pragma once

// One thin layer over SQLite and PostgreSQL; the only place that includes sqlite3.h and libpq-fe.h.
// Statements are constants of the program with `?` for each value, which is always bound and never
// written into the text. Every failure throws Error.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace heddle::jobs::store {

using Value = std::variant<std::monostate, std::int64_t, double, std::string>;
using Row = std::vector<Value>;

inline bool is_null(const Value& value) { return value.index() == 0; }
/// As a number or text; 0, 0.0 or empty for null.
std::int64_t to_int(const Value& value);
double to_double(const Value& value);
std::string to_text(const Value& value);

class Database {
 public:
  /// `postgresql://...`, `postgres://...`, `sqlite:///PATH` or a path. A new SQLite file gets mode
  /// 0600; without `create` a missing one is an error, as is a missing directory without
  /// `make_directory`, which makes it with mode 0700.
  static std::unique_ptr<Database> open(const std::string& url, bool create,
                                        bool make_directory = false);
  virtual ~Database() = default;

  virtual bool is_postgres() const = 0;
  /// For messages: without a password.
  virtual const std::string& name() const = 0;
  /// Runs several statements without values.
  virtual void script(const std::string& sql) = 0;
  /// Result: the number of rows that were changed.
  std::int64_t run(const std::string& sql, const Row& values = {}) {
    return each(sql, values, [](Row&) {});
  }
  /// Calls `take` for each row. Result: rows changed, or rows found.
  virtual std::int64_t each(const std::string& sql, const Row& values,
                            const std::function<void(Row&)>& take) = 0;
  std::vector<Row> query(const std::string& sql, const Row& values = {});
  /// Many rows into `table`. `fill` puts the values of row `i` in the order of `columns`.
  virtual void insert(const std::string& table, const std::vector<std::string>& columns,
                      std::size_t count, const std::function<void(std::size_t i, Row&)>& fill) = 0;
};

/// Rolled back by the destructor unless committed. One at a time.
class Transaction {
 public:
  explicit Transaction(Database& database);
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  ~Transaction();
  void commit();

 private:
  Database& database_;
  bool open_ = true;
};

}  // namespace heddle::jobs::store
