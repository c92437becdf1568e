package sinks

// AppendAttribute appends the value of a CloudEvents attribute as an HTTP or NATS header has it: space, double quote,
// percent and everything but printable ASCII is percent-encoded (http-protocol-binding.md and nats-protocol-binding.md,
// section 3.1.3.2).
func AppendAttribute(dst, value []byte) []byte {
	const digits = "0123456789ABCDEF"
	for _, b := range value {
		if b <= ' ' || b == '"' || b == '%' || b > '~' {
			dst = append(dst, '%', digits[b>>4], digits[b&15])
		} else {
			dst = append(dst, b)
		}
	}
	return dst
}
