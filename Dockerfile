# Sheaf's server in a container:
#
#     docker build -t sheaf .
#     docker run -p 8080:8080 sheaf                     # the model that comes with it
#     docker run -p 8080:8080 -v /srv/models/NAME:/model:ro -e SHEAF_MODEL=/model --memory 16g sheaf
#
# Every flag of `sheaf serve` is an environment variable (SHEAF_...), or can follow the image's name.
# Memory for keys and values follows the container's limit (SHEAF_KV_CACHE_BUDGET=auto). `docker stop`
# drains; give it the time for that (--stop-timeout 45). These commands were tried in a bare Debian 12,
# not yet by Docker.

FROM debian:bookworm-slim AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev cmake ninja-build pkgconf \
        libxxhash-dev libssl-dev libjansson-dev libpcre2-dev libutf8proc-dev libedit-dev libmicrohttpd-dev
COPY . /src
WORKDIR /src
RUN cmake --preset release -DSHEAF_BUILD_TESTS=OFF -DSHEAF_BUILD_BENCHES=OFF \
        -DCMAKE_INSTALL_PREFIX=/usr/local \
    && cmake --build build/release \
    && DESTDIR=/out cmake --install build/release --strip

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends libxxhash0 libssl3 libjansson4 libpcre2-8-0 \
        libutf8proc2 libedit2 libmicrohttpd12 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /out/usr/local/bin/sheaf /usr/local/bin/sheaf
COPY --from=build /out/usr/local/share/sheaf /usr/local/share/sheaf
ENV SHEAF_HOST=0.0.0.0 SHEAF_PORT=8080 SHEAF_MODEL=/usr/local/share/sheaf/models/sheaf-demo
USER 65532:65532
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD ["bash", "-c", \
    "exec 3<>/dev/tcp/127.0.0.1/$SHEAF_PORT && printf 'GET /health HTTP/1.0\\r\\n\\r\\n' >&3 && head -n 1 <&3 | grep -q ' 200 '"]
ENTRYPOINT ["sheaf", "serve"]
