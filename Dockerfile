# A static binary in an empty image. Each platform is built natively:
#   docker buildx build --platform linux/amd64,linux/arm64 -t pd-proxy .

FROM rust:1.95-alpine AS build
# musl-dev also for the C of ring.
RUN apk add --no-cache musl-dev
WORKDIR /src
COPY . .
# The toolchain file stays outside: the image is the toolchain. On Alpine the default target is musl, linked statically.
# Of what is for debuggers only names are kept, for the log of a panic: a sixth of the size.
ARG TARGETPLATFORM
RUN --mount=type=cache,target=/usr/local/cargo/registry,id=cargo-${TARGETPLATFORM} \
    --mount=type=cache,target=/src/target,id=target-${TARGETPLATFORM} \
    cargo build --release --locked --bin pd-proxy --config 'profile.release.strip="debuginfo"' \
    && cp target/release/pd-proxy /pd-proxy

FROM scratch
COPY --from=build /pd-proxy /pd-proxy
COPY LICENSE /LICENSE
# The process writes nothing but to standard output and error: run it with --read-only, and without a name.
USER 65532:65532
# Inside a container loopback is of no use. A variable, so that it also holds when the arguments below are replaced.
ENV PD_PROXY__SERVER__HOST=0.0.0.0
EXPOSE 8000
# Drains for server.drain_ms (30 s): give it as long, with --stop-timeout.
STOPSIGNAL SIGTERM
# Asks by variables and files; a port that is given by a flag below is to be given by PD_PROXY__SERVER__PORT instead.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s CMD ["/pd-proxy", "health"]
ENTRYPOINT ["/pd-proxy"]
CMD ["--host", "0.0.0.0"]
