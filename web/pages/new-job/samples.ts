// The request as code.
import type { CreateJobInput } from '../../../sdk/index.ts'
import { pythonValue } from '../../lib/python.ts'

/** Reads `TUNERY_KEY` of the environment: no key stands in copied code. */
export function samplesOf(request: CreateJobInput, address = `${location.origin}/v1`) {
  const json = JSON.stringify(request, null, 2)
  return [
    { name: 'JSON', code: json },
    {
      name: 'curl',
      code: `curl ${address}/fine-tuning/jobs \\
  -H "Authorization: Bearer $TUNERY_KEY" \\
  -H 'Content-Type: application/json' \\
  -d '${json.replaceAll("'", "'\\''")}'`,
    },
    {
      name: 'TypeScript',
      code: `import { Tunery } from 'tunery-client'

const tunery = new Tunery({ baseUrl: '${address}', apiKey: process.env.TUNERY_KEY })
const { id } = await tunery.jobs.create(${json.replaceAll(/^( *)"([a-z_]+)":/gm, '$1$2:')})
const job = await tunery.jobs.wait(id)
console.log(job.status, job.model)`,
    },
    {
      name: 'Python',
      code: `import os
import requests

job = requests.post(
    "${address}/fine-tuning/jobs",
    headers={"Authorization": f"Bearer {os.environ['TUNERY_KEY']}"},
    json=${pythonValue(request, '    ')},
).json()
print(job["id"], job["status"])`,
    },
  ]
}
