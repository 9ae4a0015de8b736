// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <mutex>
#include <png.h>
#include <protozero/pbf_writer.hpp>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <muster/tensorboard.h>

#include "rendezvous/base/fail.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"
#include "worker_runtime/core/crc32c.h"

namespace muster {
namespace {

using protozero::pbf_writer;
/// Adds its field to a Summary.Value; false: there is nothing to show.
using Encode = std::function<bool(pbf_writer& value)>;

struct Summary {
  std::string tag;
  std::int64_t step;
  double wall_time;
  Encode encode;  // on the writer's thread
};

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// A record of an event file: length, its masked CRC, data, its masked CRC; little-endian.
void append_record(std::string& out, const std::string& data) {
  const auto put = [&out](auto number) { out.append(reinterpret_cast<const char*>(&number), sizeof number); };
  const auto put_crc = [&put](std::string_view bytes) {
    const std::uint32_t sum = crc32c(bytes);
    put((sum >> 15 | sum << 17) + 0xa282ead8U);
  };
  const std::size_t begin = out.size();
  put(std::uint64_t{data.size()});
  put_crc(std::string_view(out).substr(begin));
  out += data;
  put_crc(data);
}

/// -1e20 ... -1e-12, 0, 1e-12 ... 1e20, computed as TensorBoard does.
std::vector<double> histogram_edges() {
  std::vector<double> edges{0};
  for (double v = 1e-12; v < 1e20; v *= 1.1) edges.insert(edges.end(), {v, -v});
  std::sort(edges.begin(), edges.end());
  return edges;
}

/// As summary.proto's HistogramProto: the buckets from the first to the last that has a value, an empty one
/// before them for the left limit.
bool add_histogram(pbf_writer& value, const std::vector<float>& values) {
  static const std::vector<double> edges = histogram_edges();
  std::vector<double> counts(edges.size() - 1, 0);
  double low = HUGE_VAL, high = -HUGE_VAL, num = 0, sum = 0, squares = 0;
  for (const float one : values) {
    const auto v = static_cast<double>(one);
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
  if (first == std::ssize(counts)) return false;
  const auto end = counts.rend() - std::find_if(counts.rbegin(), counts.rend(), filled);
  std::vector<double> shown{0};
  shown.insert(shown.end(), counts.begin() + first, counts.begin() + end);
  pbf_writer histogram(value, 5);
  for (const auto& [field, number] : {std::pair(1, low), {2, high}, {3, num}, {4, sum}, {5, squares}})
    histogram.add_double(static_cast<protozero::pbf_tag_type>(field), number);
  histogram.add_packed_double(6, edges.begin() + first, edges.begin() + end + 1);
  histogram.add_packed_double(7, shown.begin(), shown.end());
  return true;
}

/// As summary.proto's Image, with a PNG in it. `image`: but for its pixels.
bool add_image(pbf_writer& value, const SummaryImage& image, const std::vector<std::uint8_t>& pixels) {
  png_image picture{};
  picture.version = PNG_IMAGE_VERSION;
  picture.height = static_cast<png_uint_32>(image.height);
  picture.width = static_cast<png_uint_32>(image.width);
  picture.format = image.channels == 1   ? PNG_FORMAT_GRAY
                   : image.channels == 3 ? PNG_FORMAT_RGB
                                         : PNG_FORMAT_RGBA;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(picture);
  std::string png(size, '\0');
  if (png_image_write_to_memory(&picture, png.data(), &size, 0, pixels.data(), 0, nullptr) == 0) return false;
  pbf_writer out(value, 4);
  out.add_int32(1, image.height);
  out.add_int32(2, image.width);
  out.add_int32(3, image.channels);
  out.add_bytes(4, png.data(), size);
  return true;
}

class EventFile final : public SummaryWriter {
 public:
  EventFile(UniqueFd file, std::string path, const SummaryWriterOptions& options)
      : file_(std::move(file)), path_(std::move(path)), options_(options) {}
  ~EventFile() override { (void)EventFile::close(); }

  Result<void> start() {
    std::string version, record;
    pbf_writer out(version);
    out.add_double(1, wall_time());
    out.add_string(3, "brain.Event:2");
    append_record(record, version);
    MUSTER_OK(write(record));
    MUSTER_TRY(thread_, start_quiet_thread([this] { run(); }));
    return {};
  }

  void add_scalar(std::string_view tag, double value, std::int64_t step) override {
    add(tag, step, 0, [value](pbf_writer& out) {
      out.add_float(2, static_cast<float>(value));
      return true;
    });
  }
  void add_histogram(std::string_view tag, std::span<const float> values, std::int64_t step) override {
    add(tag, step, values.size_bytes(), [copy = std::vector(values.begin(), values.end())](pbf_writer& out) {
      return muster::add_histogram(out, copy);
    });
  }
  Result<void> add_image(std::string_view tag, const SummaryImage& image, std::int64_t step) override {
    constexpr int kLargest = 1 << 15;
    const auto within = [](int side) { return side >= 1 && side <= kLargest; };
    if (!within(image.height) || !within(image.width) ||
        (image.channels != 1 && image.channels != 3 && image.channels != 4) ||
        std::ssize(image.pixels) != std::int64_t{image.height} * image.width * image.channels)
      return invalid(
          "add_image '{}': {} bytes for {} x {} pixels of {} channels; give height * width * channels bytes, "
          "1, 3 or 4 channels, sides up to {}",
          tag, image.pixels.size(), image.height, image.width, image.channels, kLargest);
    add(tag, step, image.pixels.size(),
        [image, copy = std::vector(image.pixels.begin(), image.pixels.end())](pbf_writer& out) {
          return muster::add_image(out, image, copy);
        });
    return {};
  }

  Result<void> flush() override {
    std::unique_lock lock(mutex_);
    hurry_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this, mine = added_] { return done_ >= mine; });
    return status_;
  }
  Result<void> close() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    if (!thread_.joinable()) return status_;
    thread_.join();
    if (dropped_ != 0 && status_)
      std::fprintf(stderr, "muster: %s lacks %llu summaries: they came faster than they could be written\n",
                   path_.c_str(), static_cast<unsigned long long>(dropped_));
    return status_;
  }
  std::uint64_t dropped() const override {
    const std::lock_guard lock(mutex_);
    return dropped_;
  }
  const std::string& path() const override { return path_; }

 private:
  void add(std::string_view tag, std::int64_t step, std::size_t bytes, Encode encode) {
    Summary made{std::string(tag), step, wall_time(), std::move(encode)};
    const std::lock_guard lock(mutex_);
    bytes += sizeof made + tag.size();
    if (stopping_ || !status_ || bytes > options_.max_queue_bytes - queued_bytes_) {
      ++dropped_;
      return;
    }
    queued_bytes_ += bytes;
    ++added_;
    queue_.push_back(std::move(made));
    hurry_ = hurry_ || queued_bytes_ > options_.max_queue_bytes / 2;
    if (hurry_ || queue_.size() == 1) changed_.notify_all();
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (!stopping_ || !queue_.empty()) {
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      changed_.wait_for(lock, options_.flush_interval, [this] { return stopping_ || hurry_; });
      const std::vector<Summary> taken = std::exchange(queue_, {});
      queued_bytes_ = 0;
      hurry_ = false;
      const std::uint64_t done = added_;
      if (status_) {
        lock.unlock();
        auto written = write(taken);
        lock.lock();
        if (!written)
          std::fprintf(stderr, "muster: %s; nothing more is written to it, the run goes on\n",
                       written.error().message.c_str());
        status_ = std::move(written);
      }
      if (!status_) dropped_ += taken.size();
      done_ = done;
      changed_.notify_all();
    }
  }

  Result<void> write(const std::vector<Summary>& summaries) {
    std::string records, event, value;
    for (const Summary& one : summaries) {
      value.clear();
      pbf_writer of_value(value);
      of_value.add_string(1, one.tag);
      if (!one.encode(of_value)) continue;
      event.clear();
      pbf_writer of_event(event);
      of_event.add_double(1, one.wall_time);
      of_event.add_int64(2, one.step);
      pbf_writer(of_event, 5).add_message(1, value);
      append_record(records, event);
    }
    return write(records);
  }

  /// All of it, or nothing is left of it.
  Result<void> write(std::string_view bytes) {
    if (auto done = write_all(file_.get(), bytes); !done) {
      (void)::ftruncate(file_.get(), static_cast<off_t>(size_));  // a torn record would hide what follows
      return fail("TensorBoard's " + path_, done.error());
    }
    size_ += bytes.size();
    return {};
  }

  const UniqueFd file_;
  const std::string path_;
  const SummaryWriterOptions options_;
  std::uint64_t size_ = 0;  // of the file; the thread's
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Summary> queue_;
  std::size_t queued_bytes_ = 0;
  std::uint64_t added_ = 0, done_ = 0, dropped_ = 0;
  Result<void> status_;
  bool hurry_ = false, stopping_ = false;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<SummaryWriter>> SummaryWriter::create(const std::string& log_dir,
                                                             const SummaryWriterOptions& options) {
  std::error_code error;
  std::filesystem::create_directories(log_dir, error);
  if (error) return fail(errno_error("TensorBoard's directory " + log_dir, error.value()));
  char host[256] = "localhost";
  (void)::gethostname(host, sizeof host - 1);
  const auto now = static_cast<std::int64_t>(wall_time());
  std::string path;
  UniqueFd file;
  for (int n = 0; !file; ++n) {
    path = fmt::format("{}/events.out.tfevents.{:010}.{}.{}.{}", log_dir, now, host, ::getpid(), n);
    file.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666));
    if (!file && errno != EEXIST) return fail(errno_error("TensorBoard's " + path, errno));
  }
  auto made = std::make_unique<EventFile>(std::move(file), std::move(path), options);
  MUSTER_OK(made->start());
  return made;
}

}  // namespace muster
