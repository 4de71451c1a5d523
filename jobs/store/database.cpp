// SPDX-License-Identifier: MIT
#include "jobs/store/database.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <libpq-fe.h>
#include <sqlite3.h>

#include <charconv>
#include <filesystem>
#include <limits>

#include "base/fd.hpp"
#include "base/result.hpp"
#include "base/trusted_path.hpp"

namespace heddle::jobs::store {
namespace {

std::string one_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  for (char& c : text)
    if (c == '\n' || c == '\t') c = ' ';
  return text;
}

/// Integers of up to 64 bits, else a double: sums of bigint are numeric in PostgreSQL.
Value number_of(const std::string& text) {
  std::int64_t whole = 0;
  const char* end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, whole);
  if (error == std::errc() && after == end) return whole;
  return std::strtod(text.c_str(), nullptr);
}

class Sqlite final : public Database {
 public:
  Sqlite(const std::string& path, bool create, bool make_directory) : path_(path) {
    std::error_code failed;
    const auto place = std::filesystem::absolute(path, failed);
    if (!create && !std::filesystem::exists(path, failed))
      throw Error(path, "no such database", {},
                  "fs-job submit makes it; --db or FS_JOB_DB names another");
    if (create && !make_directory && !std::filesystem::exists(place.parent_path(), failed))
      throw Error(path, "cannot make the database", "its directory does not exist");
    // SQLite obeys journals that are beside the file, which can name any file to remove.
    if (is_systems_root()) {
      auto trusted = check_trusted_directory(place.parent_path());
      if (trusted) trusted = check_trusted_file(place);
      // SQLite follows links, and has its journals beside the file itself.
      if (const auto real = std::filesystem::canonical(place, failed); trusted && !failed)
        trusted = check_trusted_directory(real.parent_path());
      if (!trusted)
        throw Error(path, "root does not use this database", trusted.error().message(),
                    "run fs-job as the user whose it is");
    }
    if (create) {
      if (make_directory) value_or_throw(make_directory_to_write(place.parent_path(), 0700));
      // SQLite would create it with the umask's mode; its journal gets the file's own.
      value_or_throw(open_file(path, O_RDWR | O_CREAT, 0600));
    }
    sqlite3* raw = nullptr;
    const int status = ::sqlite3_open_v2(path.c_str(), &raw, SQLITE_OPEN_READWRITE, nullptr);
    handle_.reset(raw);
    if (status != SQLITE_OK) fail_now("cannot open");
    ::sqlite3_busy_timeout(raw, 120'000);
    script(
        "PRAGMA foreign_keys=ON; PRAGMA synchronous=NORMAL;"
        "PRAGMA temp_store=MEMORY; PRAGMA cache_size=-32000");
  }
  bool is_postgres() const override { return false; }
  const std::string& name() const override { return path_; }

  void script(const std::string& sql) override {
    if (::sqlite3_exec(handle_.get(), sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK)
      fail_now("the database refuses");
  }

  std::int64_t each(const std::string& sql, const Row& values,
                    const std::function<void(Row&)>& take) override {
    const Statement statement = prepare(sql);
    bind(statement.get(), values);
    std::int64_t rows = 0;
    const int columns = ::sqlite3_column_count(statement.get());
    Row row(static_cast<std::size_t>(columns));
    for (int status = 0; (status = ::sqlite3_step(statement.get())) != SQLITE_DONE; ++rows) {
      if (status != SQLITE_ROW) fail_now("the database refuses");
      for (int i = 0; i < columns; ++i) row[static_cast<std::size_t>(i)] = column(statement, i);
      take(row);
    }
    return columns > 0 ? rows : ::sqlite3_changes64(handle_.get());
  }

  void insert(const std::string& table, const std::vector<std::string>& columns, std::size_t count,
              const std::function<void(std::size_t, Row&)>& fill) override {
    std::string marks = "?";
    for (std::size_t i = 1; i < columns.size(); ++i) marks += ",?";
    const Statement statement = prepare(
        fmt::format("INSERT INTO {} ({}) VALUES ({})", table, fmt::join(columns, ","), marks));
    Row row;
    for (std::size_t i = 0; i < count; ++i) {
      row.clear();
      fill(i, row);
      bind(statement.get(), row);
      if (::sqlite3_step(statement.get()) != SQLITE_DONE) fail_now("the database refuses");
      ::sqlite3_reset(statement.get());
    }
  }

 private:
  struct Close {
    void operator()(sqlite3* handle) const { ::sqlite3_close(handle); }
    void operator()(sqlite3_stmt* statement) const { ::sqlite3_finalize(statement); }
  };
  using Statement = std::unique_ptr<sqlite3_stmt, Close>;

  [[noreturn]] void fail_now(const char* what) const {
    throw Error(path_, what, one_line(::sqlite3_errmsg(handle_.get())));
  }
  Statement prepare(const std::string& sql) const {
    sqlite3_stmt* raw = nullptr;
    if (::sqlite3_prepare_v2(handle_.get(), sql.c_str(), -1, &raw, nullptr) != SQLITE_OK)
      fail_now("the database refuses");
    return Statement(raw);
  }
  static void bind(sqlite3_stmt* statement, const Row& values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const int at = static_cast<int>(i) + 1;
      if (const auto* whole = std::get_if<std::int64_t>(&values[i]))
        ::sqlite3_bind_int64(statement, at, *whole);
      else if (const auto* real = std::get_if<double>(&values[i]))
        ::sqlite3_bind_double(statement, at, *real);
      else if (const auto* text = std::get_if<std::string>(&values[i]))
        ::sqlite3_bind_text64(statement, at, text->data(), text->size(), SQLITE_STATIC,
                              SQLITE_UTF8);
      else
        ::sqlite3_bind_null(statement, at);
    }
  }
  static Value column(const Statement& statement, int i) {
    switch (::sqlite3_column_type(statement.get(), i)) {
      case SQLITE_INTEGER:
        return std::int64_t{::sqlite3_column_int64(statement.get(), i)};
      case SQLITE_FLOAT:
        return ::sqlite3_column_double(statement.get(), i);
      case SQLITE_NULL:
        return {};
      default:
        break;
    }
    const auto* text = static_cast<const char*>(::sqlite3_column_blob(statement.get(), i));
    const auto size = static_cast<std::size_t>(::sqlite3_column_bytes(statement.get(), i));
    return size == 0 ? std::string() : std::string(text, size);
  }

  std::string path_;
  std::unique_ptr<sqlite3, Close> handle_;
};

class Postgres final : public Database {
 public:
  explicit Postgres(const std::string& url) : handle_(::PQconnectdb(url.c_str())) {
    // libpq's message names host, port and user, never the password.
    if (::PQstatus(handle_.get()) != CONNECTION_OK)
      throw Error("postgresql", "cannot connect", one_line(::PQerrorMessage(handle_.get())));
    name_ = std::string("postgresql:") + ::PQdb(handle_.get());
    ::PQsetNoticeProcessor(
        handle_.get(), [](void*, const char*) {}, nullptr);
    if (::PQserverVersion(handle_.get()) < 150000)
      throw Error(name_, "the server is too old", "PostgreSQL 15 or newer is needed",
                  "before 15 its views ignore row-level security");
    // pg_temp last, so that no temporary table takes the place of one of ours.
    script("SET search_path = fs_job, pg_temp; SET client_encoding = 'UTF8'");
  }
  bool is_postgres() const override { return true; }
  const std::string& name() const override { return name_; }

  void script(const std::string& sql) override {
    check(Answer(::PQexec(handle_.get(), sql.c_str())));
  }

  std::int64_t each(const std::string& sql, const Row& values,
                    const std::function<void(Row&)>& take) override {
    std::string numbered;
    int marks = 0;
    for (const char c : sql)
      if (c == '?')
        numbered += "$" + std::to_string(++marks);
      else
        numbered += c;
    std::vector<std::string> texts(values.size());
    std::vector<const char*> pointers(values.size(), nullptr);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (is_null(values[i])) continue;
      texts[i] = to_text(values[i]);
      pointers[i] = texts[i].c_str();
    }
    const Answer answer(::PQexecParams(handle_.get(), numbered.c_str(),
                                       static_cast<int>(values.size()), nullptr, pointers.data(),
                                       nullptr, nullptr, 0));
    check(answer);
    const int rows = ::PQntuples(answer.get());
    const int columns = ::PQnfields(answer.get());
    Row row(static_cast<std::size_t>(columns));
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < columns; ++c) row[static_cast<std::size_t>(c)] = field(answer, r, c);
      take(row);
    }
    if (columns > 0) return rows;
    return to_int(number_of(::PQcmdTuples(answer.get())));
  }

  /// COPY is not for tables with row-level security (COPY, "Notes"), so it fills a temporary one.
  void insert(const std::string& table, const std::vector<std::string>& columns, std::size_t count,
              const std::function<void(std::size_t, Row&)>& fill) override {
    const auto list = fmt::format("{}", fmt::join(columns, ","));
    script(fmt::format("CREATE TEMPORARY TABLE pg_temp.new_{0} AS SELECT {1} FROM {0} LIMIT 0",
                       table, list));
    const Answer begun(
        ::PQexec(handle_.get(), fmt::format("COPY pg_temp.new_{} FROM STDIN", table).c_str()));
    if (::PQresultStatus(begun.get()) != PGRES_COPY_IN) check(begun);
    std::string lines;
    Row row;
    for (std::size_t i = 0; i < count; ++i) {
      row.clear();
      fill(i, row);
      for (std::size_t c = 0; c < row.size(); ++c) {
        if (c > 0) lines += '\t';
        add_copy_text(lines, row[c]);
      }
      lines += '\n';
      if (lines.size() > 1 << 18) put(lines);
    }
    put(lines);
    if (::PQputCopyEnd(handle_.get(), nullptr) != 1) fail_now();
    while (PGresult* raw = ::PQgetResult(handle_.get())) check(Answer(raw));
    script(fmt::format(
        "INSERT INTO {0} ({1}) SELECT {1} FROM pg_temp.new_{0}; DROP TABLE pg_temp.new_{0}", table,
        list));
  }

 private:
  struct Close {
    void operator()(PGconn* handle) const { ::PQfinish(handle); }
    void operator()(PGresult* answer) const { ::PQclear(answer); }
  };
  using Answer = std::unique_ptr<PGresult, Close>;

  [[noreturn]] void fail_now() const {
    throw Error(name_, "the database refuses", one_line(::PQerrorMessage(handle_.get())));
  }
  void check(const Answer& answer) const {
    const auto status = ::PQresultStatus(answer.get());
    if (status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK) return;
    const char* text = ::PQresultErrorField(answer.get(), PG_DIAG_MESSAGE_PRIMARY);
    if (text == nullptr) fail_now();
    const char* state = ::PQresultErrorField(answer.get(), PG_DIAG_SQLSTATE);
    const auto is = [state](std::string_view code) { return state != nullptr && state == code; };
    // Errors of PostgreSQL ("Error Codes"): undefined_table, insufficient_privilege.
    throw Error::with_code(is("42501") ? EPERM : 0, name_, "the database refuses", one_line(text),
                           is("42P01") ? "an administrator runs fs-job migrate first" : "");
  }
  void put(std::string& lines) {
    if (!lines.empty() &&
        ::PQputCopyData(handle_.get(), lines.data(), static_cast<int>(lines.size())) != 1)
      fail_now();
    lines.clear();
  }
  /// COPY's text format ("File Formats").
  static void add_copy_text(std::string& out, const Value& value) {
    if (is_null(value)) {
      out += "\\N";
      return;
    }
    for (const char c : to_text(value)) {
      if (c == '\\' || c == '\n' || c == '\t' || c == '\r') {
        out += '\\';
        out += c == '\n' ? 'n' : c == '\t' ? 't' : c == '\r' ? 'r' : '\\';
      } else {
        out += c;
      }
    }
  }
  static Value field(const Answer& answer, int row, int column) {
    if (::PQgetisnull(answer.get(), row, column) != 0) return {};
    std::string text(::PQgetvalue(answer.get(), row, column),
                     static_cast<std::size_t>(::PQgetlength(answer.get(), row, column)));
    switch (::PQftype(answer.get(), column)) {  // pg_type.dat
      case 16:
        return std::int64_t{text == "t"};
      case 20:
      case 21:
      case 23:
      case 700:
      case 701:
      case 1700:
        return number_of(text);
      default:
        return text;
    }
  }

  std::unique_ptr<PGconn, Close> handle_;
  std::string name_;
};

}  // namespace

std::int64_t to_int(const Value& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return *whole;
  if (const auto* real = std::get_if<double>(&value)) {
    using Limits = std::numeric_limits<std::int64_t>;
    if (*real >= 0x1p63) return Limits::max();
    return *real >= -0x1p63 ? static_cast<std::int64_t>(*real) : Limits::min();
  }
  if (const auto* text = std::get_if<std::string>(&value))
    return std::strtoll(text->c_str(), nullptr, 10);
  return 0;
}

double to_double(const Value& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return static_cast<double>(*whole);
  if (const auto* real = std::get_if<double>(&value)) return *real;
  return 0;
}

std::string to_text(const Value& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return std::to_string(*whole);
  if (const auto* real = std::get_if<double>(&value)) return fmt::format("{}", *real);
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  return {};
}

std::unique_ptr<Database> Database::open(const std::string& url, bool create, bool make_directory) {
  if (url.starts_with("postgresql://") || url.starts_with("postgres://"))
    return std::make_unique<Postgres>(url);
  constexpr std::string_view kSqlite = "sqlite:///";
  if (url.starts_with(kSqlite))
    return std::make_unique<Sqlite>(url.substr(kSqlite.size()), create, make_directory);
  if (url.find("://") != std::string::npos)
    throw Error("", "unknown kind of database", "neither postgresql:// nor sqlite:///");
  return std::make_unique<Sqlite>(url, create, make_directory);
}

std::vector<Row> Database::query(const std::string& sql, const Row& values) {
  std::vector<Row> rows;
  each(sql, values, [&](Row& row) { rows.push_back(row); });
  return rows;
}

Transaction::Transaction(Database& database) : database_(database) {
  // IMMEDIATE: two writers wait for each other instead of failing when both go from read to write.
  database_.script(database_.is_postgres() ? "BEGIN" : "BEGIN IMMEDIATE");
}

Transaction::~Transaction() {
  if (!open_) return;
  try {
    database_.script("ROLLBACK");
  } catch (const std::exception&) {  // the connection is gone: the server rolls back
  }
}

void Transaction::commit() {
  database_.script("COMMIT");
  open_ = false;
}

}  // namespace heddle::jobs::store
