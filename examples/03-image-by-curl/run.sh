#!/bin/sh
# Four models answer curl by text, labels and boxes:
#
#     examples/03-image-by-curl/run.sh [PORT]
#
# from the root of a checkout with its .venv. The models are fetched as zoo/files.csv says.
set -eu

here=$(dirname "$0")
python=${PYTHON:-.venv/bin/python}
port=${1:-8700}
work=$(mktemp -d)
server=
trap 'test -z "$server" || kill "$server"; rm -rf "$work"' EXIT

build() { # NAME FILE-OF-THE-ZOO
    mkdir -p "$work/models/$1/1"
    cp "$here/$1.contract.toml" "$work/models/$1/1/contract.toml"
    source=$("$python" -m zoo.fetch "$2" | awk '{print $2}')
    "$python" -m castiron build "$source" --out "$work/models/$1/1/model.cast" \
        --contract "$here/$1.contract.toml" --quiet >"$work/log" 2>&1
}

build ocr ocr_rec
build orientation orientation
build nsfw nsfw
build nudenet nudenet

"$python" -c "
from PIL import Image
from zoo import pictures
Image.fromarray(pictures.text_line('Hello World 2026')).save('$work/line.png')
Image.fromarray(pictures.photo('page.png')).save('$work/page.jpg')
Image.fromarray(pictures.photo('astronaut.png')).save('$work/astronaut.jpg', quality=95)
"

"$python" -m castiron serve "$work/models" --port "$port" --strict-readiness 2>"$work/log" &
server=$!
models="http://127.0.0.1:$port/v2/models"
until curl --silent --fail --output /dev/null "http://127.0.0.1:$port/v2/health/ready"; do
    kill -0 "$server" || { cat "$work/log"; exit 1; }
    sleep 0.2
done

# A form with a file, or the file as the body: both are an image.
set -x
curl --silent --fail --form image=@"$work/line.png" "$models/ocr/predict"; echo
curl --silent --fail --data-binary @"$work/page.jpg" --header 'content-type: image/jpeg' \
    "$models/orientation/predict"; echo
curl --silent --fail --form image=@"$work/astronaut.jpg" "$models/nsfw/predict"; echo
curl --silent --fail --form image=@"$work/astronaut.jpg" "$models/nudenet/predict"; echo
