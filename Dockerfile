# syntax=docker/dockerfile:1
# A static binary on an image without shell, package manager or root. Built for the platform that is asked for, on the
# platform that builds.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY cmd ./cmd
COPY internal ./internal
COPY pkg ./pkg
ARG VERSION=dev
ARG TARGETOS
ARG TARGETARCH
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /out/exporter ./cmd/exporter

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/exporter /exporter
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/exporter"]
CMD ["run", "--config", "/etc/kubecdc/config.yaml"]
