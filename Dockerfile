# syntax=docker/dockerfile:1
# kvbridged and the kvbridge command line. Build: docker build -t kvbridge .
# The runtime image holds no Python and no torch: the CPU backend is our own code. Pin the bases with
# --build-arg BASE=debian:bookworm@sha256:... (and RUNTIME).

ARG BASE=debian:bookworm
ARG RUNTIME=debian:bookworm-slim

FROM ${BASE} AS builder
ARG VERSION=0.1.0
WORKDIR /src
COPY deploy/packages.txt deploy/requirements.txt deploy/requirements-transformers4.txt deploy/setup.sh deploy/
RUN bash deploy/setup.sh --no-python && rm -rf /var/lib/apt/lists/*
COPY CMakeLists.txt CMakePresets.json ./
COPY cmake cmake
COPY core core
COPY proto proto
COPY server server
COPY client client
RUN --mount=type=cache,target=/var/cache/ccache export CCACHE_DIR=/var/cache/ccache \
    && cmake --preset release -DKVBRIDGE_BUILD_TESTS=OFF -DKVBRIDGE_BUILD_BENCH=OFF \
    && cmake --build build/release --target kvbridged kvbridge \
    && install -D -s -t /out/usr/bin build/release/server/kvbridged build/release/client/cli/kvbridge
COPY deploy/sbom.py deploy/
# What it consists of, and which packages the runtime image needs for it.
RUN mkdir -p /out/usr/share/doc/kvbridge \
    && python3 deploy/sbom.py --version "${VERSION}" /out/usr/bin/kvbridged /out/usr/bin/kvbridge \
         > /out/usr/share/doc/kvbridge/kvbridge.cdx.json \
    && python3 deploy/sbom.py --packages /out/usr/bin/kvbridged /out/usr/bin/kvbridge \
         > /out/usr/share/doc/kvbridge/runtime-packages

FROM ${RUNTIME} AS runtime
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=unknown
ARG SOURCE=unknown
ARG RUNTIME=debian:bookworm-slim
ARG RUNTIME_DIGEST=unknown
LABEL org.opencontainers.image.title="kvbridge" \
      org.opencontainers.image.description="Turns one language model's KV cache into a sibling model's" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.documentation="${SOURCE}/blob/${REVISION}/docs/operations.md" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${RUNTIME}" \
      org.opencontainers.image.base.digest="${RUNTIME_DIGEST}"
COPY --from=builder /out/ /
RUN apt-get update \
    && xargs -a /usr/share/doc/kvbridge/runtime-packages apt-get install -y --no-install-recommends \
    && rm -rf /var/lib/apt/lists/*
# Memory for messages in huge pages where the host has them: the inline plane runs a quarter faster.
ENV GLIBC_TUNABLES=glibc.malloc.hugetlb=1
# Any user id works, and a root file system that can't be written: nothing is written outside mounted volumes.
USER 65532:65532
EXPOSE 50061 50062 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=6 \
    CMD ["kvbridge", "health", "--server", "127.0.0.1:50061", "-q"]
ENTRYPOINT ["kvbridged"]
CMD ["--config", "/etc/kvbridge/kvbridged.yaml"]
