# syntax=docker/dockerfile:1
# kvbridged and the kvbridge CLI. Build: docker build -t kvbridge .
# The runtime image holds no Python and no torch: the CPU backend is our own code.

ARG BASE=debian:bookworm
ARG RUNTIME=debian:bookworm-slim

FROM ${BASE} AS builder
WORKDIR /src
COPY deploy/packages.txt deploy/requirements.txt deploy/requirements-transformers4.txt deploy/setup.sh deploy/
RUN bash deploy/setup.sh --no-python && rm -rf /var/lib/apt/lists/*
COPY CMakeLists.txt CMakePresets.json ./
COPY cmake cmake
COPY core core
COPY proto proto
COPY server server
COPY client client
RUN cmake --preset release -DKVBRIDGE_BUILD_TESTS=OFF -DKVBRIDGE_BUILD_BENCH=OFF \
    && cmake --build build/release --target kvbridged kvbridge \
    && install -D -s -t /out/usr/bin build/release/server/kvbridged build/release/client/cli/kvbridge

FROM ${RUNTIME} AS runtime
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="kvbridge" \
      org.opencontainers.image.description="Turns one language model's KV cache into a sibling model's" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgrpc++1.51 libprotobuf32 libabsl20220623 libspdlog1.10 libfmt9 \
       libyaml-cpp0.7 libssl3 libprometheus-cpp-core1.0 libprometheus-cpp-pull1.0 libcivetweb1 libucx0 zlib1g \
    && rm -rf /var/lib/apt/lists/*
COPY --from=builder /out/ /
# Any UID works: nothing is written outside mounted volumes.
USER 65532:65532
EXPOSE 50061 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=6 \
    CMD ["kvbridge", "health", "--server", "127.0.0.1:50061", "-q"]
ENTRYPOINT ["kvbridged"]
CMD ["--config", "/etc/kvbridge/kvbridged.yaml"]
