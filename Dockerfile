# The program, and of glibc what it loads, in an otherwise empty image. Not with musl, whose allocator makes a request 1.8 times as dear
# (benches/RESULTS.md). Each platform is built natively:
#   docker buildx build --platform linux/amd64,linux/arm64 -t pd-proxy .
# By cargo's profile `dist`, and by what an instrumented build was seen to run (benches/pgo/dist.sh): a fifth fewer instructions per
# request, for three times the time. --build-arg PGO=no goes without.

FROM rust:1.95.0-bookworm AS build
WORKDIR /src
COPY . .
# The toolchain file stays outside: the image is the toolchain.
ARG TARGETPLATFORM
ARG PGO=yes
RUN --mount=type=cache,target=/usr/local/cargo/registry,id=cargo-${TARGETPLATFORM} \
    --mount=type=cache,target=/src/target,id=target-${TARGETPLATFORM} \
    case "$PGO" in \
        no) flag= ;; \
        yes) flag=--pgo ;; \
        *) echo "PGO is yes or no, not '$PGO'" >&2 && exit 1 ;; \
    esac \
    && program=$(benches/pgo/dist.sh $flag) \
    && install -D "$program" /image/pd-proxy
# What it is linked with, at the same places, and that /etc/hosts is looked into before the DNS is asked.
RUN ldd /image/pd-proxy | grep -o '/[^ ]*' | xargs cp --parents --dereference --target-directory=/image \
    && mkdir /image/etc \
    && echo 'hosts: files dns' >/image/etc/nsswitch.conf \
    && cp LICENSE /image/

FROM scratch
COPY --from=build /image/ /
# The process writes nothing but to standard output and error: run it with --read-only, and without a name.
USER 65532:65532
# Inside a container loopback is of no use. Weaker than any file, variable or flag that says where to listen.
ENV PD_PROXY_DEFAULT_HOST=0.0.0.0
EXPOSE 8000
# Serves on for server.lame_duck_ms (0), finishes answers for server.drain_ms (30 s), and then takes up to 13 s to release hand-offs and to
# post spans: give it longer than all three, as by --stop-timeout 50.
STOPSIGNAL SIGTERM
# Knows variables, and the files that PD_PROXY_CONFIG names; what the gateway is told by flags (--config, --port) it can't know.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s CMD ["/pd-proxy", "health"]
ENTRYPOINT ["/pd-proxy"]
