// SPDX-License-Identifier: MIT
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>

namespace heddle::compat {

/// Whether gRPC has reflection v1 beside v1alpha itself.
#ifdef HEDDLE_GRPC_REFLECTS_V1
inline constexpr bool kGrpcReflectsV1 = true;
#else
inline constexpr bool kGrpcReflectsV1 = false;
#endif

/// Reflection v1, where gRPC has v1alpha alone: their messages are the same on the wire, so each
/// call is handed on to that service of the same server.
class ReflectionV1 final : public grpc::Service {
 public:
  ReflectionV1() {
    using Handler =
        grpc::internal::BidiStreamingHandler<ReflectionV1, grpc::ByteBuffer, grpc::ByteBuffer>;
    AddMethod(new grpc::internal::RpcServiceMethod(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", kKind,
        new Handler([](ReflectionV1* self, grpc::ServerContext* context,
                       auto* stream) { return self->hand_on(*context, *stream); },
                    this)));
  }
  /// Until then calls are refused; with nullptr before the server's end.
  void set_server(grpc::Server* server) {
    channel_ = server ? server->InProcessChannel(grpc::ChannelArguments()) : nullptr;
  }

 private:
  static constexpr auto kKind = grpc::internal::RpcMethod::BIDI_STREAMING;
  grpc::Status hand_on(grpc::ServerContext& context,
                       grpc::ServerReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>& stream) {
    using Factory = grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>;
    const auto channel = channel_.load();
    if (!channel) return {grpc::StatusCode::UNAVAILABLE, "the server is starting or ending"};
    const grpc::internal::RpcMethod method(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", kKind, channel);
    const auto own = grpc::ClientContext::FromServerContext(context);
    const std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> call(
        Factory::Create(channel.get(), method, own.get()));
    grpc::ByteBuffer request, answer;
    while (stream.Read(&request))
      if (!call->Write(request) || !call->Read(&answer) || !stream.Write(answer)) break;
    call->WritesDone();
    return call->Finish();
  }

  std::atomic<std::shared_ptr<grpc::Channel>> channel_;
};

}  // namespace heddle::compat
