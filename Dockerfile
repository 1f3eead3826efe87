# A static binary in an empty image. Each platform is built natively:
#   docker buildx build --platform linux/amd64,linux/arm64 -t pd-proxy .

FROM rust:1.95-alpine AS build
RUN apk add --no-cache musl-dev
WORKDIR /src
COPY . .
# The toolchain file stays outside: the image is the toolchain. On Alpine the default target is musl, linked statically.
ARG TARGETPLATFORM
RUN --mount=type=cache,target=/usr/local/cargo/registry,id=cargo-${TARGETPLATFORM} \
    --mount=type=cache,target=/src/target,id=target-${TARGETPLATFORM} \
    cargo build --release --locked --bin pd-proxy \
    && cp target/release/pd-proxy /pd-proxy

FROM scratch
COPY --from=build /pd-proxy /pd-proxy
COPY LICENSE /LICENSE
# The process has nothing to write and needs no name.
USER 65532:65532
# Inside a container loopback is of no use. A variable, so that it also holds when the arguments below are replaced.
ENV PD_PROXY__SERVER__HOST=0.0.0.0
EXPOSE 8000
ENTRYPOINT ["/pd-proxy"]
CMD ["--host", "0.0.0.0"]
