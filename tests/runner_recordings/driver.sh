#!/usr/bin/env bash
# Records how it is called, and behaves as the job's P_* variables say: the driver of the recordings, once more.
# One file per call in $RECORDINGS, named by its start; values are quoted by %q, so that one line is one fact.

record="$RECORDINGS/$EPOCHREALTIME.$1.$$"
note() { printf '%s %q\n' "$1" "$2" >>"$record"; }
finish() { note exit "$1"; note end "$EPOCHREALTIME"; exit "$1"; }
number() {
    case "$1" in
    B) echo "$BUILD_FAILURE_EXIT_CODE" ;;
    S) echo "$SYSTEM_FAILURE_EXIT_CODE" ;;
    *) echo "$1" ;;
    esac
}

call=$1
note call "$call"
note pid $$
note parent $PPID
note tmpdir "$TMPDIR"
note job "$CUSTOM_ENV_CI_JOB_ID"
[[ -v FROM_CONFIG ]] && note job_env "$FROM_CONFIG"
note status "$CUSTOM_ENV_CI_JOB_STATUS"
note project_dir "$CUSTOM_ENV_CI_PROJECT_DIR"
note concurrent "$CUSTOM_ENV_CI_CONCURRENT_PROJECT_ID"
if [[ -e $BUILD_EXIT_CODE_FILE ]]; then
    IFS= read -r -d '' content <"$BUILD_EXIT_CODE_FILE"
    note stale "$content"
fi
note cwd "$PWD"
note stdin "$(readlink /proc/$$/fd/0)"
note stdout "$(readlink /proc/$$/fd/1)"
note stderr "$(readlink /proc/$$/fd/2)"
note group "$(cut -d ' ' -f 5 /proc/$$/stat)"
note response "$(stat -c %a "$JOB_RESPONSE_FILE")"
note own_dir "$(stat -c %a "$TMPDIR")"
for argument in "${@:2}"; do note arg "$argument"; done
if [[ $CUSTOM_ENV_P_SAMPLE ]]; then
    env -0 >"$record.env"
    cp "$JOB_RESPONSE_FILE" "$record.response"
fi

trap 'note signal SIGTERM; [[ $sleeper ]] && kill -KILL "$sleeper"; finish "${CUSTOM_ENV_P_TERMRC:-2}"' TERM

case $call in
config)
    if [[ $CUSTOM_ENV_P_CONFIGBAD ]]; then
        echo 'this is not JSON'
    elif [[ $CUSTOM_ENV_P_CONFIG ]]; then
        printf '%s' "$CUSTOM_ENV_P_CONFIG"
    else
        printf '{"driver": {"name": "recorder", "version": "1"}, "job_env": {"FROM_CONFIG": "x y"}}\n'
    fi
    finish 0
    ;;
prepare)
    echo 'preparing'
    if [[ $CUSTOM_ENV_P_PREPSLEEP ]]; then
        # A SIGTERM between its fork and its exec is lost on it: it keeps no pipe, and the trap kills it for good.
        sleep "$CUSTOM_ENV_P_PREPSLEEP" >/dev/null 2>&1 &
        sleeper=$!
        wait $!
    fi
    finish "$(number "${CUSTOM_ENV_P_PREPRC:-0}")"
    ;;
run)
    script=$2 stage=$3
    note mode "$(stat -c %a "$script")"
    if [[ $CUSTOM_ENV_P_RCSTAGE == "$stage" ]]; then
        [[ $CUSTOM_ENV_P_BG ]] && { setsid sleep "$CUSTOM_ENV_P_BG" & }
        [[ $CUSTOM_ENV_P_FILE ]] && printf '%s' "$CUSTOM_ENV_P_FILE" >"$BUILD_EXIT_CODE_FILE"
        finish "$(number "$CUSTOM_ENV_P_RC")"
    fi
    if [[ $CUSTOM_ENV_P_IGNTERM && $stage == build_script ]]; then
        # The script lives in a session of its own and keeps the pipes: only giving up ends the runner's wait.
        trap '' TERM
        setsid bash "$script" &
    else
        bash "$script" &
    fi
    wait $!
    code=$?
    ((code == 0)) && finish 0
    printf '%s\n' "$code" >"$BUILD_EXIT_CODE_FILE"
    finish "$BUILD_FAILURE_EXIT_CODE"
    ;;
cleanup)
    echo 'to the runner log' >&2
    finish "${CUSTOM_ENV_P_CLEANRC:-0}"
    ;;
esac
