// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <mutex>
#include <optional>
#include <png.h>
#include <protozero/pbf_writer.hpp>
#include <thread>
#include <unistd.h>
#include <utility>
#include <variant>
#include <vector>

#include <boost/crc.hpp>
#include <fmt/format.h>

#include <muster/check.h>
#include <muster/tensorboard.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"

namespace muster {
namespace {

// Numbers of the fields in event.proto and summary.proto.
namespace event {
enum : std::uint8_t { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5 };
}
namespace summary {
enum : std::uint8_t { kValue = 1 };
enum : std::uint8_t { kTag = 1, kSimpleValue = 2, kImage = 4, kHistogram = 5 };  // of a value
}  // namespace summary
namespace histogram {
enum : std::uint8_t { kMin = 1, kMax, kNum, kSum, kSumSquares, kBucketLimit, kBucket };
}
namespace image {
enum : std::uint8_t { kHeight = 1, kWidth, kColorspace, kEncoded };
}

struct Pixels {
  std::vector<std::uint8_t> values;
  int height, width, channels;
};
struct Summary {
  std::string tag;
  std::int64_t step;
  double wall_time;
  std::variant<double, std::vector<float>, Pixels> value;
};

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// A record of an event file: length, its masked CRC, data, its masked CRC; little-endian.
void append_record(std::string& out, const std::string& data) {
  const auto put = [&out](auto number) {
    for (std::size_t i = 0; i < sizeof number; ++i)
      out.push_back(static_cast<char>(number >> (8 * i) & 0xff));
  };
  const auto put_crc = [&put](const char* bytes, std::size_t size) {
    boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;  // CRC-32C
    crc.process_bytes(bytes, size);
    const std::uint32_t sum = crc.checksum();
    put((sum >> 15 | sum << 17) + 0xa282ead8U);
  };
  const std::size_t begin = out.size();
  put(std::uint64_t{data.size()});
  put_crc(out.data() + begin, sizeof(std::uint64_t));
  out += data;
  put_crc(data.data(), data.size());
}

/// -1e20 ... -1e-12, 0, 1e-12 ... 1e20, computed as TensorBoard does.
std::vector<double> histogram_edges() {
  std::vector<double> edges{0};
  for (double v = 1e-12; v < 1e20; v *= 1.1) edges.push_back(v);
  const std::size_t positive = edges.size() - 1;
  edges.reserve(2 * positive + 1);
  for (std::size_t i = 1; i <= positive; ++i) edges.push_back(-edges[i]);
  std::sort(edges.begin(), edges.end());
  return edges;
}

/// A HistogramProto: the buckets from the first to the last that has a value, an empty one before them for
/// the left limit. Nothing without a value in any bucket.
std::optional<std::string> encode(const std::vector<float>& values, const std::vector<double>& edges) {
  std::vector<double> counts(edges.size() - 1, 0);
  double low = HUGE_VAL, high = -HUGE_VAL, num = 0, sum = 0, squares = 0;
  for (const float value : values) {
    const auto v = static_cast<double>(value);
    if (!std::isfinite(v)) continue;
    low = std::min(low, v);
    high = std::max(high, v);
    num += 1;
    sum += v;
    squares += v * v;
    const auto bucket = std::upper_bound(edges.begin(), edges.end(), v) - edges.begin();
    if (bucket > 0 && bucket <= std::ssize(counts)) counts[static_cast<std::size_t>(bucket - 1)] += 1;
  }
  const auto filled = [](double count) { return count > 0; };
  const auto first = std::find_if(counts.begin(), counts.end(), filled) - counts.begin();
  if (first == std::ssize(counts)) return std::nullopt;
  const auto end = counts.rend() - std::find_if(counts.rbegin(), counts.rend(), filled);
  std::vector<double> shown{0};
  shown.insert(shown.end(), counts.begin() + first, counts.begin() + end);
  std::string bytes;
  protozero::pbf_writer out(bytes);
  out.add_double(histogram::kMin, low);
  out.add_double(histogram::kMax, high);
  out.add_double(histogram::kNum, num);
  out.add_double(histogram::kSum, sum);
  out.add_double(histogram::kSumSquares, squares);
  out.add_packed_double(histogram::kBucketLimit, edges.begin() + first, edges.begin() + end + 1);
  out.add_packed_double(histogram::kBucket, shown.begin(), shown.end());
  return bytes;
}

/// An Image with a PNG in it; nothing where libpng refuses.
std::optional<std::string> encode(const Pixels& pixels) {
  png_image picture{};
  picture.version = PNG_IMAGE_VERSION;
  picture.height = static_cast<png_uint_32>(pixels.height);
  picture.width = static_cast<png_uint_32>(pixels.width);
  picture.format = pixels.channels == 1   ? PNG_FORMAT_GRAY
                   : pixels.channels == 3 ? PNG_FORMAT_RGB
                                          : PNG_FORMAT_RGBA;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(picture);
  std::string png(size, '\0');
  if (png_image_write_to_memory(&picture, png.data(), &size, 0, pixels.values.data(), 0, nullptr) == 0)
    return std::nullopt;
  std::string bytes;
  protozero::pbf_writer out(bytes);
  out.add_int32(image::kHeight, pixels.height);
  out.add_int32(image::kWidth, pixels.width);
  out.add_int32(image::kColorspace, pixels.channels);
  out.add_bytes(image::kEncoded, png.data(), size);
  return bytes;
}

/// An Event; nothing where there is nothing to show.
std::optional<std::string> encode(const Summary& one, const std::vector<double>& edges) {
  std::string value;
  protozero::pbf_writer of_value(value);
  of_value.add_string(summary::kTag, one.tag);
  if (const auto* const scalar = std::get_if<double>(&one.value)) {
    of_value.add_float(summary::kSimpleValue, static_cast<float>(*scalar));
  } else if (const auto* const values = std::get_if<std::vector<float>>(&one.value)) {
    const auto bytes = encode(*values, edges);
    if (!bytes) return std::nullopt;
    of_value.add_message(summary::kHistogram, *bytes);
  } else {
    const auto bytes = encode(std::get<Pixels>(one.value));
    if (!bytes) return std::nullopt;
    of_value.add_message(summary::kImage, *bytes);
  }
  std::string bytes;
  protozero::pbf_writer out(bytes);
  out.add_double(event::kWallTime, one.wall_time);
  out.add_int64(event::kStep, one.step);
  protozero::pbf_writer(out, event::kSummary).add_message(summary::kValue, value);
  return bytes;
}

}  // namespace

class SummaryWriter::Thread {
 public:
  Thread(UniqueFd file, std::string path, const SummaryWriterOptions& options)
      : file_(std::move(file)), path_(std::move(path)), options_(options) {}
  ~Thread() { (void)close(); }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  Result<void> start() {
    std::string version, record;
    protozero::pbf_writer out(version);
    out.add_double(event::kWallTime, wall_time());
    out.add_string(event::kFileVersion, "brain.Event:2");
    append_record(record, version);
    MUSTER_OK(write(record));
    // Signals are for the program's own threads.
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { run(); });
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return {};
  }

  void add(std::string_view tag, std::int64_t step, decltype(Summary::value) value, std::size_t bytes) {
    Summary made{std::string(tag), step, wall_time(), std::move(value)};
    const std::lock_guard lock(mutex_);
    bytes += sizeof made + tag.size();
    if (stopping_ || error_ || bytes > options_.max_queue_bytes - queued_bytes_) {
      ++dropped_;
      return;
    }
    const std::size_t half = options_.max_queue_bytes / 2;
    if (queue_.empty() || (queued_bytes_ <= half && queued_bytes_ + bytes > half)) changed_.notify_all();
    queued_bytes_ += bytes;
    queue_.push_back(std::move(made));
  }

  Result<void> flush() {
    std::unique_lock lock(mutex_);
    const std::uint64_t mine = ++flushes_wanted_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return flushes_done_ >= mine || ended_; });
    return status_locked();
  }

  Result<void> close() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    if (thread_.joinable()) {
      thread_.join();
      if (dropped_ != 0 && !error_)
        std::fprintf(stderr, "muster: %s lacks %llu summaries: they came faster than they could be written\n",
                     path_.c_str(), static_cast<unsigned long long>(dropped_));
    }
    return status();
  }

  Result<void> status() const {
    const std::lock_guard lock(mutex_);
    return status_locked();
  }
  std::uint64_t dropped() const {
    const std::lock_guard lock(mutex_);
    return dropped_;
  }
  const std::string& path() const { return path_; }

 private:
  Result<void> status_locked() const {
    if (error_) return fail(*error_);
    return {};
  }

  void run() {
    const std::vector<double> edges = histogram_edges();
    std::unique_lock lock(mutex_);
    const auto urgent = [this] {
      return stopping_ || flushes_wanted_ != flushes_done_ || queued_bytes_ > options_.max_queue_bytes / 2;
    };
    while (true) {
      changed_.wait(lock, [&] { return urgent() || !queue_.empty(); });
      changed_.wait_for(lock, options_.flush_interval, urgent);
      const bool last = stopping_;
      const std::uint64_t flushes = flushes_wanted_;
      const std::vector<Summary> taken = std::exchange(queue_, {});
      queued_bytes_ = 0;
      if (!error_ && !taken.empty()) {
        lock.unlock();
        auto written = write(taken, edges);
        lock.lock();
        if (!written) give_up(std::move(written.error()), taken.size());
      }
      flushes_done_ = flushes;
      ended_ = last;
      changed_.notify_all();
      if (last) return;
    }
  }

  void give_up(Error error, std::size_t lost) {
    std::fprintf(stderr, "muster: %s; nothing more is written to it, the run goes on\n",
                 error.message.c_str());
    error_ = std::move(error);
    dropped_ += lost;
  }

  Result<void> write(const std::vector<Summary>& summaries, const std::vector<double>& edges) {
    constexpr std::size_t kEnough = std::size_t{1} << 20;
    std::string records;
    for (const Summary& one : summaries) {
      if (const auto made = encode(one, edges)) append_record(records, *made);
      if (records.size() < kEnough) continue;
      MUSTER_OK(write(records));
      records.clear();
    }
    return write(records);
  }

  /// All of it, or nothing is left of it.
  Result<void> write(std::string_view bytes) {
    if (auto done = write_all(file_.get(), bytes); !done) {
      (void)::ftruncate(file_.get(), static_cast<off_t>(written_));  // a torn record would hide what follows
      return fail("TensorBoard's " + path_, done.error());
    }
    written_ += bytes.size();
    return {};
  }

  const UniqueFd file_;
  const std::string path_;
  const SummaryWriterOptions options_;
  std::uint64_t written_ = 0;  // bytes of whole records; the thread's
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Summary> queue_;
  std::size_t queued_bytes_ = 0;
  std::uint64_t dropped_ = 0, flushes_wanted_ = 0, flushes_done_ = 0;
  std::optional<Error> error_;
  bool stopping_ = false, ended_ = false;
  std::thread thread_;
};

SummaryWriter::SummaryWriter(std::unique_ptr<Thread> thread) : thread_(std::move(thread)) {}
SummaryWriter::~SummaryWriter() = default;

Result<std::unique_ptr<SummaryWriter>> SummaryWriter::create(const std::string& log_dir,
                                                             const SummaryWriterOptions& options) {
  std::error_code error;
  std::filesystem::create_directories(log_dir, error);
  if (error) return fail(errno_error("TensorBoard's directory " + log_dir, error.value()));
  char host[256] = "";
  if (::gethostname(host, sizeof host - 1) != 0) std::strcpy(host, "localhost");
  std::string path;
  UniqueFd file;
  for (int n = 0; !file; ++n) {
    path = fmt::format("{}/events.out.tfevents.{:010}.{}.{}.{}", log_dir,
                       static_cast<std::int64_t>(wall_time()), host, ::getpid(), n);
    file.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666));
    if (!file && errno != EEXIST) return fail(errno_error("TensorBoard's " + path, errno));
  }
  auto thread = std::make_unique<Thread>(std::move(file), std::move(path), options);
  MUSTER_OK(thread->start());
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): private constructor
  return std::unique_ptr<SummaryWriter>(new SummaryWriter(std::move(thread)));
}

void SummaryWriter::add_scalar(std::string_view tag, double value, std::int64_t step) {
  thread_->add(tag, step, value, 0);
}

void SummaryWriter::add_histogram(std::string_view tag, std::span<const float> values, std::int64_t step) {
  thread_->add(tag, step, std::vector<float>(values.begin(), values.end()), values.size_bytes());
}

Result<void> SummaryWriter::add_image(std::string_view tag, const SummaryImage& image, std::int64_t step) {
  constexpr int kLargest = 1 << 15;
  const bool fits =
      image.height >= 1 && image.height <= kLargest && image.width >= 1 && image.width <= kLargest &&
      (image.channels == 1 || image.channels == 3 || image.channels == 4) &&
      image.pixels.size() == static_cast<std::size_t>(image.height) * static_cast<std::size_t>(image.width) *
                                 static_cast<std::size_t>(image.channels);
  if (!fits)
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("add_image '{}': {} bytes for {} x {} pixels of {} channels; give height * width * "
                    "channels bytes, 1, 3 or 4 channels, sides up to {}",
                    tag, image.pixels.size(), image.height, image.width, image.channels, kLargest));
  thread_->add(tag, step,
               Pixels{{image.pixels.begin(), image.pixels.end()}, image.height, image.width, image.channels},
               image.pixels.size());
  return {};
}

Result<void> SummaryWriter::flush() {
  return thread_->flush();
}
Result<void> SummaryWriter::close() {
  return thread_->close();
}
Result<void> SummaryWriter::status() const {
  return thread_->status();
}
std::uint64_t SummaryWriter::dropped() const {
  return thread_->dropped();
}
const std::string& SummaryWriter::path() const {
  return thread_->path();
}

}  // namespace muster
