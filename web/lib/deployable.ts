import { useQuery } from '@tanstack/react-query'
import { tunery } from './api.ts'

/** What a name can serve: tuned models, then the bases that are here. For a `Combobox`. */
export const useDeployable = () =>
  useQuery({
    queryKey: ['models', 'deployable'],
    queryFn: async ({ signal }) => {
      const [tuned, hub] = await Promise.all([
        tunery.models.list({ limit: 100 }, { signal }),
        tunery.hub.list({}, { signal }),
      ])
      const bases = hub.models.filter(({ weights, category }) => weights.available && category !== 'embedding')
      return [
        ...tuned.items.map(({ id, name, base_model_id }) => ({ value: id, label: name, note: base_model_id })),
        ...bases.map(({ id }) => ({ value: id, label: id, note: 'Base model' })),
      ]
    },
  })

/** A name that programs can send, made of another. */
export const asDeploymentName = (text: string) =>
  text
    .toLowerCase()
    .replace(/[^a-z0-9._-]+/g, '-')
    .replace(/^[-._]+|(?<![-._])[-._]+$/g, '')
    .slice(0, 40)
