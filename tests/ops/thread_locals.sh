#!/usr/bin/env bash
# Every thread_local variable either belongs to the thread, or to what runs on it: then batch() exchanges it when it goes on with another
# instance (core/thread_words_impl.h). A new one has to be entered here, in one list or the other.
set -euo pipefail
cd "$1"
of_threads="asked|batch_instance|cache|capturing_into|current_tracer|end|end_of_thread|here|innermost_bound|inside_of_scope|is_failing|is_in_part|is_made|is_one_by_one|is_outside_trace|last|lent|logs|mine|number|of_thread|paused|scheduler|scope|sequence_loops|shapes_only|spare_chunk|spare_memory|spare_stacks|told|watcher|workspace"
of_instances="call_line|tapes|thread|thread_words"
failed=0
while IFS= read -r line; do
    name=$(sed -E 's/.*thread_local//; s/<[^ ]*>//; s/__attribute__.*//; s/[;={(].*//; s/\[.*//; s/ +$//; s/.*[ :*&]//' <<<"$line")
    if [[ ! $name =~ ^($of_threads|$of_instances)$ ]]; then
        echo "not classified: $name in $line"
        failed=1
    fi
done < <(grep -rnE '^[^/]*\bthread_local\b' core autograd ops nn optim cuda --include='*.h' --include='*.cpp' --include='*.cu' | grep -v '^[^:]*:[0-9]*: *//')
exit $failed
