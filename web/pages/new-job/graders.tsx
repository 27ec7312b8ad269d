// What a job learns from graders needs beside model and data: the graders, and how many answers of which length.
import { useQuery } from '@tanstack/react-query'
import type { JobEstimate } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { GradersForm } from '../../parts/graders.tsx'
import { ExternalLink } from '../../ui/button.tsx'
import { Card } from '../../ui/layout.tsx'
import { besideGraders, type Draft, entriesFor, gradersPath } from './draft.ts'
import { Setting } from './setting.tsx'

export function GradersCard({
  draft,
  change,
  errorOf,
  estimate,
}: {
  draft: Draft
  change: (changes: Partial<Draft>) => void
  errorOf: (path: string) => string | undefined
  estimate: JobEstimate | undefined
}) {
  const judges = useQuery({
    queryKey: ['models', 'callable'],
    queryFn: ({ signal }) => tunery.models.callable.list({ signal }),
  })
  const values = draft.values.method_options
  const resolved = estimate?.resolved_config.method_options as Record<string, { value: unknown }> | undefined
  const error = errorOf(gradersPath) ?? errorOf('config.method_options.grader')
  return (
    <Card
      title="4. Graders"
      description="The model answers each prompt several times, and learns from the answers that score best."
    >
      <div className="grid grid-cols-[minmax(0,1fr)] gap-5">
        <GradersForm
          hideLegend
          drafts={draft.graders}
          onChange={(graders) => change({ graders })}
          models={(judges.data?.data ?? [])
            .filter(({ category }) => category !== 'embedding')
            .map(({ id }) => ({ value: id, label: id }))}
          text={
            <>
              The score is the reward: with several graders, their mean. {'{{item.reference}}'} is the answer of a row;
              rows that are prompts alone have fields of their own, such as {'{{item.sum}}'}.{' '}
              <ExternalLink href="/docs/guides/reinforcement">Guide</ExternalLink>
            </>
          }
        />
        {error && (
          <p role="alert" className="text-sm text-bad">
            {error}
          </p>
        )}
        <div className="grid items-start gap-x-6 gap-y-5 sm:grid-cols-2">
          {entriesFor('method_options', draft.method, 'reinforcement')
            .filter(({ name }) => besideGraders.includes(name))
            .map((info) => (
              <Setting
                key={info.name}
                info={info}
                value={values[info.name]}
                onChange={(value) =>
                  change({ values: { ...draft.values, method_options: { ...values, [info.name]: value } } })
                }
                error={errorOf(`config.method_options.${info.name}`)}
                inForce={values[info.name] === undefined ? resolved?.[info.name]?.value : undefined}
              />
            ))}
        </div>
      </div>
    </Card>
  )
}
