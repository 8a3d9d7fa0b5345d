// What the search of a built site finds: node site_search.mjs SITE QUERY...
// It is the theme's own worker, which a page starts with the same messages. Prints a line of JSON for
// each query: the pages that it finds, best first.
import { readFileSync, readdirSync } from "node:fs"
import { join } from "node:path"
import vm from "node:vm"

const [site, ...queries] = process.argv.slice(2)
const folder = join(site, "assets/javascripts/workers")
const [name] = readdirSync(folder).filter(file => /^search\..*\.js$/.test(file))
const { config, docs } = JSON.parse(readFileSync(join(site, "search/search_index.json")))

let listener
const answers = []
const inside = vm.createContext({
  addEventListener: (_, given) => { listener = given },
  postMessage: message => answers.push(message),
})
inside.self = inside
vm.runInContext(readFileSync(join(folder, name), "utf8"), inside)
await listener({ data: { type: 0, data: { config, docs, options: { suggest: true } } } })
for (const query of queries) {
  await listener({ data: { type: 2, data: query } })
  const groups = answers.at(-1).data.items
  console.log(JSON.stringify(groups.map(([first]) => first.location.replace(/#.*/, ""))))
}
