import path from 'node:path'

/** The folder of one attempt at a job. */
export const runDir = (dataDir: string, job_id: string, attempt: number) =>
  path.join(dataDir, 'runs', job_id, String(attempt))
