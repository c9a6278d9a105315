#!/bin/bash
# Runs train.py on two machines: sbatch slurm.sh
#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=32 --signal=B:TERM@120
export RAY_AUTH_MODE=token
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --nodes=1 --ntasks=1 -w "$head" ray start --head --port=6379 --include-dashboard=false --block &
sleep 20
srun --nodes=1 --ntasks=1 -x "$head" ray start --address="$head:6379" --block &
sleep 20
export RAY_ADDRESS="$head:6379"
python train.py &              # the batch script runs on the first machine
trap "kill -TERM $!" TERM
wait $!                        # returns when the signal comes
wait $!                        # until it is saved
