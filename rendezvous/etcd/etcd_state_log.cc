// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/etcd/etcd_state_log.h"

#include <utility>

#include <boost/asio/post.hpp>

namespace muster::net {

EtcdStateLog::EtcdStateLog(boost::asio::io_context& loop, std::string job, State record, Write write)
    : loop_(loop), name_(std::move(job)), record_(std::move(record)), write_(std::move(write)) {
  if (record_) saved_.jobs.emplace(name_, *record_);
}

// A job of another id has come to the wrong coordinator; nothing of it is kept.
void EtcdStateLog::job(std::string_view name, const JobRecord& record) {
  if (name != name_) return;
  record_ = record;
  changed();
}

void EtcdStateLog::job_finished(std::string_view name, const membership::NodeId& node) {
  if (name != name_ || !record_) return;
  record_->finished.push_back(node);
  changed();
}

void EtcdStateLog::job_progress(std::string_view name, const JobProgress& progress) {
  if (name != name_ || !record_) return;
  record_->progress = progress;
  changed();
}

// With the next change: a record for each agent of a job that is over would keep the others waiting.
void EtcdStateLog::job_left(std::string_view name, const membership::NodeId& node) {
  if (name == name_ && record_) record_->has_gone(node);
}

void EtcdStateLog::job_forgotten(std::string_view name) {
  if (name != name_) return;
  record_.reset();
  changed();
}

void EtcdStateLog::changed() {
  changed_ = true;
  if (std::exchange(dirty_, true)) return;
  // Behind what the loop has ready now, which thereby shares the write.
  boost::asio::post(loop_, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->write();
  });
}

void EtcdStateLog::write() {
  if (closed_ || writing_) return;
  writing_ = true;
  changed_ = false;
  for (StateKeeper* keeper : keepers_) keeper->held_up();
  write_(record_, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->on_written();
  });
}

void EtcdStateLog::on_written() {
  writing_ = false;
  if (closed_) return;
  if (changed_) return write();
  dirty_ = false;
  const std::vector keepers = keepers_;
  for (StateKeeper* keeper : keepers) keeper->committed();
  for (StateKeeper* keeper : keepers) keeper->go_on();
}

}  // namespace muster::net
