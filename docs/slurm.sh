#!/bin/bash
# 8 workers and a server, a core each, on whatever nodes Slurm gives; sbatch slurm.sh
#SBATCH --job-name=refsgd
#SBATCH --ntasks=9
#SBATCH --cpus-per-task=1
#SBATCH --time=00:30:00
set -euo pipefail
module load openmpi 2>/dev/null || true   # or whatever your cluster calls it
source "$HOME/refsgd/bin/activate"        # a virtual environment with refsgd[mpi]
export OMP_NUM_THREADS=1

refsgd doctor
# Several computers have several clocks: unpaced.
srun --mpi=pmix refsgd run ssp --staleness 3 --runtime mpi --compute none --epochs 10 --json "ssp-$SLURM_JOB_ID.json"
