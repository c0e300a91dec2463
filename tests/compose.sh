#!/usr/bin/env bash
# Trains for a moment with compose.yaml on a real Docker engine, and checks what a user relies on:
#   1. both images build, and two collectors join the learner, both on shared memory;
#   2. the learner makes updates;
#   3. `stop` ends every container with exit code 0 and leaves a checkpoint in the volume;
#   4. the next `up` continues from it.
#
#   tests/compose.sh [UPDATES] [TIMEOUT_S]        (default 5 updates within 180 s)
#
# It runs as a compose project of its own and removes what that created, the volume included, also when
# it fails. The images stay, so that the next build is quick.
set -euo pipefail
cd "$(dirname "$0")/.."

updates=${1:-5}
timeout_s=${2:-180}
export COMPOSE_PROJECT_NAME=appo-check-$$ APPO_CONFIG=cartpole-swingup APPO_RUN_DIR=/runs/check

if docker compose version >/dev/null 2>&1; then
  compose() { docker compose "$@"; }
else
  compose() { docker-compose "$@"; }
fi

finish() {
  status=$?
  trap - EXIT
  if [ "$status" -ne 0 ]; then compose logs --tail 50 || true; fi
  compose down --volumes --timeout 10 >/dev/null 2>&1 || status=1
  if [ "$status" -eq 0 ]; then echo "compose: passed"; else echo "compose: FAILED" >&2; fi
  exit "$status"
}
trap finish EXIT
fail() { echo "compose: $*" >&2; exit 1; }

# Counts, in one container, the updates that were made while two collectors were admitted.
updates_with_two_collectors() {
  docker exec "$learner" cat "$APPO_RUN_DIR/metrics.jsonl" 2>/dev/null | grep -c '"collectors": *2[,}]' || true
}
both_on_shared_memory() { docker logs "$learner" 2>&1 | grep -q '2 collectors (2 shm)'; }

compose config >/dev/null
compose build
compose up -d --scale collector=2
learner=$(compose ps -q learner)
mapfile -t containers < <(compose ps -q)
[ "${#containers[@]}" -eq 3 ] || fail "expected 3 containers, found ${#containers[@]}"

deadline=$((SECONDS + timeout_s))
until [ "$(updates_with_two_collectors)" -ge "$updates" ] && both_on_shared_memory; do
  [ "$(docker inspect --format '{{.State.Running}}' "$learner")" = true ] || fail "the learner ended by itself"
  [ "$SECONDS" -lt "$deadline" ] ||
    fail "after $timeout_s s: $(updates_with_two_collectors) of $updates updates with two collectors;" \
      "log line '2 collectors (2 shm)': $(both_on_shared_memory && echo seen || echo missing)"
  sleep 1
done

compose stop
for container in "${containers[@]}"; do
  exited=$(docker inspect --format '{{.Name}} {{.State.ExitCode}}' "$container")
  [ "${exited##* }" = 0 ] || fail "exit code of $exited"
done

checkpoints=$(docker run --rm --volumes-from "$learner" --entrypoint ls appo-learner "$APPO_RUN_DIR/checkpoints")
grep -q '^model_[0-9]*\.pt$' <<<"$checkpoints" || fail "no checkpoint in the volume, only: $checkpoints"
echo "compose: $(tail -n 1 <<<"$checkpoints") lies in the volume"

resumed() { docker logs "$learner" 2>&1 | grep -q 'continuing from'; }
compose up -d --scale collector=2
until resumed; do
  [ "$SECONDS" -lt "$deadline" ] || fail "the second up did not continue the run"
  sleep 1
done
compose stop
echo "compose: the second up continued the run"
