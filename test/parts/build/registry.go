package build

import "context"

// Registry returns the directory of a schema registry with the API of Confluent's, which Java 17 runs.
func Registry(ctx context.Context) (string, error) {
	return mavenArtifacts(ctx, "the schema registry", "142 MB", "registry", "test/registry/pom.xml", "unpack-dependencies")
}

// RegistryClients returns the Python interpreter with what test/registry/requirements.txt names: deserializers that ask it.
func RegistryClients(ctx context.Context) (string, error) {
	return virtualEnvironment(ctx, "the registry's clients in Python", "30 MB", "registry-clients", "test/registry/requirements.txt")
}
