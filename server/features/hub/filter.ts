import type { Model, ModelsQuery } from '../../../contract/hub.ts'

const lastOf = (value: number | undefined) => value ?? Number.POSITIVE_INFINITY

const orders: Record<NonNullable<ModelsQuery['sort']>, (a: Model, b: Model) => number> = {
  name: (a, b) => a.name.localeCompare(b.name, 'en'),
  size: (a, b) => a.params_billions - b.params_billions,
  context: (a, b) => b.context_length - a.context_length,
  // Bases that cannot be trained, or of unknown sizes, come last.
  memory: (a, b) => {
    const [first, second] = [lastOf(a.needs.lora?.mb), lastOf(b.needs.lora?.mb)]
    return first === second ? 0 : first - second
  },
}

/** The models that a query asks for, in its order. */
export function filterModels(models: Model[], { q = '', task, size, fits, sort }: ModelsQuery): Model[] {
  const sought = q.trim().toLowerCase()
  const shown = models.filter(
    (model) =>
      `${model.id} ${model.name} ${model.description} ${model.family ?? ''}`.toLowerCase().includes(sought) &&
      (!task || model.tasks.includes(task)) &&
      (!size || model.size === size) &&
      (!fits || model.needs[fits]?.fits === true),
  )
  return sort ? shown.toSorted(orders[sort]) : shown
}
