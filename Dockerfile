# adacur serve on a CPU, with its models inside: the image starts without a network.
#
#   docker build -t adacur .
#   docker run --rm -p 127.0.0.1:8000:8000 adacur                                    # the index that ships
#   docker run --rm -p 127.0.0.1:8000:8000 -v "$PWD/my.adacur:/index/my.adacur:ro" adacur /index/my.adacur
#
# Linted with hadolint; not built where this project is tested, which has no Docker.
FROM python:3.13-slim-trixie AS build

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 ADACUR_CACHE=/opt/models
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN python -m venv /opt/adacur && /opt/adacur/bin/pip install '.[onnx,serving]' ./src/adacur_wikivital
# The cross-encoder, the encoder of its first stage, and the articles of the index that ships.
RUN /opt/adacur/bin/python -c "from adacur.data import fetch; [fetch(name) for name in ('ms-marco-MiniLM-L-12-v2', 'bge-small-en-v1.5', 'wikivital')]"

FROM python:3.13-slim-trixie

RUN useradd --create-home --uid 10001 adacur
COPY --from=build /opt/adacur /opt/adacur
COPY --from=build /opt/models /opt/models
ENV PATH=/opt/adacur/bin:$PATH ADACUR_CACHE=/opt/models PYTHONUNBUFFERED=1
USER 10001
WORKDIR /home/adacur
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/readyz', timeout=4)"]
ENTRYPOINT ["adacur", "serve", "--host", "0.0.0.0", "--port", "8000"]
