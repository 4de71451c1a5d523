# SPDX-License-Identifier: MIT
# Made by `./dev completions` from fs-job --help; do not edit.
_fs_job() {
  local word=${COMP_WORDS[COMP_CWORD]} words='-h --help --version'
  local values=
  case ${COMP_WORDS[COMP_CWORD-1]} in
    --format) values='table json csv' ;;
    --format) values='table json csv' ;;
    --format) values='table json csv' ;;
    --argv) values='full exe none' ;;
    --format) values='table json csv' ;;
    --argv) values='full exe none' ;;
    --shell) values='sh bash csh tcsh fish' ;;
    --argv) values='full exe none' ;;
    --format) values='table json csv' ;;
  esac
  case ${COMP_WORDS[1]} in
    annotate) ((COMP_CWORD < 2)) || words='-h --help --db --replace' ;;
    delete) ((COMP_CWORD < 2)) || words='-h --help --db' ;;
    diff) ((COMP_CWORD < 2)) || words='-h --help --db --args --all' ;;
    dump) ((COMP_CWORD < 2)) || words='-h --help --db -k --key' ;;
    export) ((COMP_CWORD < 2)) || words='-h --help --db --after' ;;
    list) ((COMP_CWORD < 2)) || words='-h --help --db' ;;
    migrate) ((COMP_CWORD < 2)) || words='-h --help --db' ;;
    model) ((COMP_CWORD < 2)) || words='-h --help --db --tag --host --user --name --before --after --when --incomplete --order --limit --offset --feature --format' ;;
    outliers) ((COMP_CWORD < 2)) || words='-h --help --db --tag --host --user --name --before --after --when --incomplete --order --limit --offset --feature --format --model --pattern --all' ;;
    query) ((COMP_CWORD < 2)) || words='-h --help --db --tag --host --user --name --before --after --when --incomplete --order --limit --offset --format --columns' ;;
    rca) ((COMP_CWORD < 2)) || words='-h --help --db --tag --model --json' ;;
    report) ((COMP_CWORD < 2)) || words='-h --help --db --tag --host --user --name --before --after --when --incomplete --order --limit --offset --feature -o --out' ;;
    retire) ((COMP_CWORD < 2)) || words='-h --help --db --days -n --dry-run -u --incomplete' ;;
    run) ((COMP_CWORD < 2)) || words='-h --help --jobid --name --argv --lookups --perf --to --annotate --epmt -q --quiet' ;;
    show) ((COMP_CWORD < 2)) || words='-h --help --db --tree --threads --libs --files --limit --format' ;;
    source) ((COMP_CWORD < 2)) || words='-h --help --jobid --argv --lookups --perf --shell --slurm' ;;
    stage) ((COMP_CWORD < 2)) || words='-h --help --jobid --to --epmt --left' ;;
    start) ((COMP_CWORD < 2)) || words='-h --help --jobid --name --argv --lookups --perf --annotate -e --error' ;;
    stop) ((COMP_CWORD < 2)) || words='-h --help --jobid --exit -e --error' ;;
    submit) ((COMP_CWORD < 2)) || words='-h --help --db -e --error -r --remove -n --dry-run -m --move-failed --trace' ;;
    tag) ((COMP_CWORD < 2)) || words='-h --help --db --replace' ;;
    top) ((COMP_CWORD < 2)) || words='-h --help --db --tag --host --user --name --before --after --when --incomplete --order --limit --offset --format --by -N --count' ;;
    watch) ((COMP_CWORD < 2)) || words='-h --help --interval --count --rows' ;;
  esac
  ((COMP_CWORD != 1)) || words+=' annotate delete diff dump export list migrate model outliers query rca report retire run show source stage start stop submit tag top watch'
  if [[ $values ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$values" -- "$word")
    return
  fi
  if [[ $word == -* || $COMP_CWORD == 1 ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  fi
}
complete -o default -F _fs_job fs-job
