// The models that answer side by side: what can be called, and the choice for each column.
import { useQuery } from '@tanstack/react-query'
import { Trash2 } from 'lucide-react'
import { tunery } from '../../lib/api.ts'
import { IconButton } from '../../ui/button.tsx'
import { type Choice, Combobox } from '../../ui/choices.tsx'
import { ErrorState } from '../../ui/feedback.tsx'
import { Card } from '../../ui/layout.tsx'
import type { Column } from './state.ts'

/** Everything that can be called: deployments first, then tuned models, then bases. */
export function useModels() {
  return useQuery({
    queryKey: ['models', 'callable', 'choices'],
    queryFn: async ({ signal }) => {
      const [callable, tuned, deployments] = await Promise.all([
        tunery.models.callable.list({ signal }),
        tunery.models.list({ limit: 100 }, { signal }).catch(() => undefined),
        tunery.deployments.list({ limit: 100 }, { signal }).catch(() => undefined),
      ])
      const tunedNames = new Map(tuned?.items.map(({ id, name }) => [id, name]))
      const bases = new Map(tuned?.items.map(({ id, base_model_id }) => [id, base_model_id]))
      const deployed = new Map(deployments?.items.map(({ name, model }) => [name, model]))
      const noteOf = (model: string) => `Deployment of ${tunedNames.get(model) ?? model}`
      return callable.data
        .filter(({ category }) => category !== 'embedding')
        .map(({ id }): Choice & { model: string } => {
          const model = deployed.get(id)
          const note = bases.has(id) ? `Based on ${bases.get(id)}` : 'Base model'
          return { value: id, label: tunedNames.get(id) ?? id, note: model ? noteOf(model) : note, model: model ?? id }
        })
    },
  })
}

export const letterOf = (index: number) => String.fromCharCode(65 + index)

/** Columns side by side where there is room, else one below the other. */
export const gridOf = (count: number) => ({
  gridTemplateColumns: `repeat(auto-fit, minmax(min(100%, max(16rem, ${Math.floor(90 / count)}% )), 1fr))`,
})

export function ModelsCard({
  models,
  columns,
  blind,
  onColumns,
}: {
  models: ReturnType<typeof useModels>
  columns: readonly Column[]
  blind: boolean
  onColumns: (columns: Column[]) => void
}) {
  if (models.isError)
    return (
      <Card>
        <ErrorState error={models.error} retry={() => void models.refetch()} />
      </Card>
    )
  return (
    <Card>
      <div className="grid gap-3" style={gridOf(columns.length)}>
        {columns.map((column, index) => (
          <div key={column.id} className="flex min-w-0 items-center gap-2">
            <div className="min-w-0 flex-1">
              {blind ? (
                <p className="font-medium">Model {letterOf(index)}</p>
              ) : (
                <Combobox
                  aria-label={`Model ${letterOf(index)}`}
                  value={column.model || null}
                  onChange={(model) => onColumns(columns.with(index, { ...column, model: model ?? '' }))}
                  choices={models.data ?? []}
                  placeholder="Choose a model"
                />
              )}
            </div>
            {columns.length > 1 && (
              <IconButton
                label={`Remove model ${letterOf(index)}`}
                icon={<Trash2 aria-hidden />}
                onClick={() => onColumns(columns.filter(({ id }) => id !== column.id))}
              />
            )}
          </div>
        ))}
      </div>
    </Card>
  )
}
