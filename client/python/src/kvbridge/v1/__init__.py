"""Generated messages and stubs of proto/kvbridge/v1; see generate_protos.sh."""
