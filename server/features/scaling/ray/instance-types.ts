// Instance types of a Ray cluster: `ray`, our engine on cores, and `ray:KIND`, vLLM on a GPU.

export const rayCores = 'ray'
const gpuPrefix = 'ray:'

export const isRay = (instance_type: string) => instance_type === rayCores || instance_type.startsWith(gpuPrefix)
export const rayGpu = (kind: string) => `${gpuPrefix}${kind}`

/** The kind of GPU of an instance type, by TUNERY_RAY_GPUS; undefined: cores. */
export const gpuOf = (instance_type: string) =>
  instance_type.startsWith(gpuPrefix) ? instance_type.slice(gpuPrefix.length) : undefined
