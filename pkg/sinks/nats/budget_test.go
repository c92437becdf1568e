package nats

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

func TestTheBudgetServesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(100)
		held := take(t, b, 60)
		order := make(chan int64, 2)
		for _, bytes := range []int64{70, 10} { // the small one would fit, but must not overtake
			go func() {
				got, _ := b.take(context.Background(), bytes)
				order <- got
			}()
			synctest.Wait()
		}
		if len(order) != 0 {
			t.Fatal("the budget was exceeded or the order was not kept")
		}
		b.give(held)
		if first, second := <-order, <-order; first+second != 80 {
			t.Errorf("got %d and %d bytes", first, second)
		}
	})
}

func TestAMessageLargerThanTheBudgetTakesAllOfIt(t *testing.T) {
	b := newBudget(100)
	held := take(t, b, 1000)
	if held != 100 {
		t.Errorf("took %d", held)
	}
	b.give(held)
	take(t, b, 100)
}

func TestWhoGivesUpHoldsNothingAndBlocksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(100)
		held := take(t, b, 60)
		ctx, cancel := context.WithCancel(t.Context())
		gaveUp, served := make(chan error, 1), make(chan int64, 1)
		go func() { _, err := b.take(ctx, 70); gaveUp <- err }()
		synctest.Wait()
		go func() { got, _ := b.take(context.Background(), 10); served <- got }()
		synctest.Wait()
		cancel()
		if err := <-gaveUp; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		b.give(<-served)
		b.give(held)
		take(t, b, 100)
	})
}

func take(t *testing.T, b *budget, bytes int64) int64 {
	t.Helper()
	got, err := b.take(t.Context(), bytes)
	if err != nil {
		t.Fatal(err)
	}
	return got
}
