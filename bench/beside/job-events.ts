import type { JobEvent } from '../../contract/fine-tuning.ts'
import type { startService } from '../support/service.ts'

export type Service = Awaited<ReturnType<typeof startService>>

/** The events of a job from its first one to its end. */
export async function* jobEvents(service: Service, job_id: string): AsyncGenerator<JobEvent> {
  const response = await fetch(`${service.url}/fine-tuning/jobs/${job_id}/events`, {
    headers: { authorization: `Bearer ${service.key}` },
  })
  let rest = ''
  for await (const text of response.body!.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + text).split('\n')
    rest = lines.pop()!
    for (const line of lines) if (line) yield JSON.parse(line)
  }
}
