package nearest

import "strings"

// Name returns the candidate with the smallest edit distance to word, or "" if none is close.
func Name(word string, candidates []string) string {
	best, smallest := "", max(2, len(word)/3)+1
	for _, c := range candidates {
		if n := editDistance(strings.ToLower(word), strings.ToLower(c)); n < smallest && n < len(c) {
			best, smallest = c, n
		}
	}
	return best
}

// editDistance counts the edits (insert, delete, replace a byte) from a to b (Levenshtein). Two long words have the maximum
// distance, to bound the work.
func editDistance(a, b string) int {
	const maxLength = 64
	if len(a) > maxLength || len(b) > maxLength {
		return maxLength
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
