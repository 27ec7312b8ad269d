// Small pictures in a row.
import { X } from 'lucide-react'
import { classes } from '../lib/classes.ts'

/** `name` says of what they are: "of the question", behind the number. With `onRemove` each can be taken away. */
export function Thumbnails({
  urls,
  name,
  onRemove,
  size = 'md',
}: {
  urls: readonly string[]
  name: string
  onRemove?: (index: number) => void
  size?: 'sm' | 'md'
}) {
  if (urls.length === 0) return null
  return (
    <ul className="flex flex-wrap gap-3">
      {urls.map((url, index) => (
        <li key={index} className="relative">
          <img
            src={url}
            alt={`${index + 1} ${name}`}
            decoding="async"
            className={classes(
              'w-auto rounded-md bg-surface object-contain ring-1 ring-line',
              size === 'sm' ? 'h-10 max-w-20' : 'h-20 max-w-40',
            )}
          />
          {onRemove && (
            <button
              type="button"
              aria-label={`Remove picture ${index + 1}`}
              onClick={() => onRemove(index)}
              className={
                'absolute -top-1.5 -right-1.5 grid size-6 place-items-center rounded-full bg-surface text-ink ' +
                'ring-1 ring-edge/60 hover:bg-hover'
              }
            >
              <X aria-hidden className="size-3.5" />
            </button>
          )}
        </li>
      ))}
    </ul>
  )
}
