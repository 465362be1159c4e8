// ONNX files as bytes: what is read of them, what is written, and that a damaged or hostile one is an error that says
// what is wrong, and takes no memory for what it only claims.
#include "bindings/onnx.h"

#include <cstring>

#include <catch2/catch.hpp>

#include "bindings/wire.h"
#include "engine/error.h"

namespace moonflow {

namespace {

// Fields by the numbers that onnx.proto gives them.
struct Message {
  Message integer(uint32_t field, int64_t value) && {
    writer.integer(field, value);
    return std::move(*this);
  }
  Message text(uint32_t field, std::string_view value) && {
    writer.bytes(field, value);
    return std::move(*this);
  }
  Message real(uint32_t field, float value) && {
    writer.real(field, value);
    return std::move(*this);
  }
  Message with(uint32_t field, const Message& value) && {
    writer.message(field, value.writer);
    return std::move(*this);
  }
  WireWriter writer;
};

constexpr int kFloat = 1, kInt8 = 3, kInt64 = 7, kBool = 9, kString = 8;  // element types

Message tensor(const std::string& name, int type, const std::vector<int64_t>& dims) {
  Message message;
  for (const int64_t dim : dims) message.writer.integer(1, dim);
  return std::move(message).integer(2, type).text(8, name);
}

Message value(const std::string& name) { return Message().text(1, name); }

Message node(const std::string& op, const std::vector<std::string>& inputs, const std::string& output) {
  Message message;
  for (const std::string& input : inputs) message.writer.bytes(1, input);
  return std::move(message).text(2, output).text(3, "the " + op).text(4, op);
}

std::string file(const Message& graph) {
  const Message opset = Message().text(1, "").integer(2, 17);
  return Message().integer(1, 8).with(8, opset).with(7, graph).writer.text();
}

// A graph y = Relu(x), with the field more.
std::string relu_and(uint32_t field, const Message& more) {
  return file(Message().with(11, value("x")).with(12, value("y")).with(1, node("Relu", {"x"}, "y")).with(field, more));
}

constexpr uint32_t kNode = 1, kInitializer = 5;  // fields of a graph

std::shared_ptr<HostMemory> memory() { return std::make_shared<HostMemory>(); }

OnnxModel read(const std::string& bytes, const OnnxDataFile& data_file = nullptr) {
  return read_onnx(bytes, memory(), data_file);
}

std::string fault_of(const std::string& bytes) {
  try {
    read(bytes);
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

void check_fault(const std::string& bytes, const std::string& wanted) {
  CHECK_THAT(fault_of(bytes), Catch::Contains(wanted));
}

}  // namespace

TEST_CASE("a model is its graph, in the order of the file") {
  const Message size =
      Message().with(1, Message().text(2, "batch")).with(1, Message().integer(1, 4)).with(1, Message());
  const Message type = Message().with(1, Message().integer(1, kFloat).with(2, size));
  const Message alpha = Message().text(1, "alpha").real(2, 0.25f).integer(20, 1);
  const Message graph = Message()
                            .text(2, "net")
                            .with(11, value("x").with(2, type))
                            .with(12, value("y"))
                            .with(kNode, node("LeakyRelu", {"x", ""}, "y").with(5, alpha));
  const OnnxModel model = read(file(graph));
  CHECK(model.opset == 17);
  CHECK(model.name == "net");
  REQUIRE(model.inputs.size() == 1);
  CHECK(model.inputs[0].dtype == DType::Float32);
  CHECK(*model.inputs[0].shape == std::vector<OnnxValue::Size>{std::string("batch"), int64_t{4}, std::string()});
  REQUIRE(model.nodes.size() == 1);
  CHECK(model.nodes[0].op == "LeakyRelu");
  CHECK(model.nodes[0].inputs == std::vector<std::string>{"x", ""});
  REQUIRE(model.nodes[0].attributes.size() == 1);
  CHECK(std::get<double>(model.nodes[0].attributes[0].value) == 0.25);
}

TEST_CASE("the elements of a tensor stand one by one, packed, or as they lie in memory") {
  const float one = 1, two = 2;
  std::string raw(8, '\0');
  std::memcpy(&raw[0], &one, 4);
  std::memcpy(&raw[4], &two, 4);
  const auto floats = [](const Message& tensor) {
    const OnnxModel model = read(relu_and(kInitializer, tensor));
    REQUIRE(model.initializers.size() == 1);
    const float* data = model.initializers[0].value.data<float>();
    return std::vector<float>(data, data + model.initializers[0].value.count());
  };
  const std::vector<float> wanted{1, 2};
  CHECK(floats(tensor("w", kFloat, {2}).text(9, raw)) == wanted);
  CHECK(floats(tensor("w", kFloat, {2}).text(4, raw)) == wanted);
  CHECK(floats(tensor("w", kFloat, {2}).real(4, 1).real(4, 2)) == wanted);

  const OnnxModel bools = read(relu_and(kInitializer, tensor("b", kBool, {3}).text(5, std::string("\0\1\1", 3))));
  CHECK(bools.initializers[0].value.dtype() == DType::Int8);
  CHECK(bools.initializers[0].value.data<int8_t>()[2] == 1);
  const OnnxModel negative = read(relu_and(kInitializer, tensor("n", kInt64, {1}).integer(7, -5)));
  CHECK(negative.initializers[0].value.data<int64_t>()[0] == -5);
}

TEST_CASE("an initializer that is also named among the inputs is none") {
  const Message graph = Message()
                            .with(11, value("x"))
                            .with(11, value("w"))
                            .with(12, value("y"))
                            .with(kInitializer, tensor("w", kFloat, {}).real(4, 3))
                            .with(kNode, node("Mul", {"x", "w"}, "y"));
  const OnnxModel model = read(file(graph));
  REQUIRE(model.inputs.size() == 1);
  CHECK(model.inputs[0].name == "x");
}

TEST_CASE("data in a file beside the model is asked for by a plain name") {
  const auto weight = [](const std::string& location, const std::string& length) {
    const auto entry = [](const char* key, const std::string& text) { return Message().text(1, key).text(2, text); };
    return relu_and(kInitializer, tensor("w", kFloat, {2})
                                      .with(13, entry("location", location))
                                      .with(13, entry("offset", "64"))
                                      .with(13, entry("length", length))
                                      .integer(14, 1));
  };
  std::string asked;
  const OnnxDataFile data_file = [&](const std::string& name, int64_t offset, const TensorType& type) {
    asked = name + " " + std::to_string(offset) + " " + std::to_string(type.bytes());
    return Tensor::allocate(type);
  };
  read(weight("net.onnx.data", "8"), data_file);
  CHECK(asked == "net.onnx.data 64 8");
  for (const char* outside : {"../secret", "/etc/passwd", "..", ".", "", "a/b", "a\\b"})
    check_fault(weight(outside, "8"), "only files in the model's folder are read");
  check_fault(weight("net.onnx.data", "7"), "which takes 8 bytes; it has 7");
  check_fault(weight("net.onnx.data", "-8"), "the length of data in another file is '-8'");
  check_fault(weight("net.onnx.data", "8"), "keeps its data in another file");
}

TEST_CASE("what is written is read again as it was") {
  OnnxModel model;
  model.opset = 17;
  model.producer = "moonflow";
  model.name = "net";
  model.inputs = {{"x", DType::Float32, std::vector<OnnxValue::Size>{std::string("batch"), int64_t{2}}}};
  model.outputs = {{"y", DType::Float32, std::vector<OnnxValue::Size>{int64_t{1}, int64_t{2}}}};
  Tensor weight = Tensor::allocate({DType::Float64, {2}});
  weight.data<double>()[0] = 0.1;
  weight.data<double>()[1] = -7;
  model.initializers = {{"w", weight}};
  model.nodes = {{"Op",
                  "",
                  "a node",
                  {"x", "", "w"},
                  {"y"},
                  {{"f", 0.5},
                   {"i", int64_t{-3}},
                   {"s", std::string("text")},
                   {"t", weight},
                   {"fs", std::vector<double>{1, 2}},
                   {"is", std::vector<int64_t>{-1, int64_t{1} << 40}},
                   {"ss", std::vector<std::string>{"", "b"}}}}};
  const auto [head, graph] = write_onnx(model);
  const OnnxModel again = read(head + graph);
  CHECK(again.producer == "moonflow");
  CHECK(*again.inputs[0].shape == *model.inputs[0].shape);
  CHECK(again.initializers[0].value.data<double>()[0] == 0.1);
  REQUIRE(again.nodes[0].attributes.size() == 7);
  CHECK(again.nodes[0].inputs == model.nodes[0].inputs);
  for (size_t i : {0, 1, 2, 4, 5, 6}) {
    const OnnxAttribute::Value &wrote = model.nodes[0].attributes[i].value, &got = again.nodes[0].attributes[i].value;
    REQUIRE(got.index() == wrote.index());
    std::visit(
        [&](const auto& value) {
          using T = std::decay_t<decltype(value)>;
          if constexpr (!std::is_same_v<T, Tensor>) CHECK(std::get<T>(got) == value);
        },
        wrote);
  }
  CHECK(std::get<Tensor>(again.nodes[0].attributes[3].value).data<double>()[1] == -7);
}

TEST_CASE("a file that ends early is an error at every length") {
  const std::string whole = relu_and(kInitializer, tensor("w", kFloat, {2}).real(4, 1).real(4, 2));
  read(whole);
  for (size_t length = 0; length < whole.size(); ++length) {
    INFO(length);
    CHECK(fault_of(whole.substr(0, length)) != "none");
  }
}

TEST_CASE("lengths and numbers that cannot be are errors") {
  check_fault("", "there is no graph in it");
  check_fault(std::string("\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11), "bytes stands where 0 are left");
  check_fault(
      "\x3a\x05"
      "ab",
      "a field of 5 bytes stands where 2 are left");
  check_fault(std::string("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 11), "more than 64 bits");
  check_fault(std::string("\x00\x01", 2), "a field has the number 0");
  check_fault("\x0b", "wire type 3");
  check_fault("\x3a\x02\x08\x01", "is neither text nor a message");
}

TEST_CASE("a file of another kind is no damaged model") {
  check_fault("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n",
              "this is no ONNX model but text: 'version https://git-lfs.github.com/spec/v1'");
  check_fault("<!DOCTYPE html>", "this is no ONNX model but text: '<!DOCTYPE html>'");
  check_fault("PK\x03\x04", "this is no ONNX model: byte 2: a field has the number 0");
  check_fault(std::string(100, '\0'), "this is no ONNX model: byte 0: a field has the number 0");
  const std::string whole = relu_and(kNode, node("Relu", {"x"}, "z"));
  for (size_t length = 2; length < whole.size(); ++length) {
    INFO(length);
    const std::string fault = fault_of(whole.substr(0, length));
    CHECK(fault.find("no ONNX model: byte") == fault.npos);
  }
}

TEST_CASE("a tensor that claims more than it has takes no memory") {
  const auto host = memory();
  const std::string huge = relu_and(kInitializer, tensor("w", kFloat, {int64_t{1} << 30, 4}).text(9, "1234"));
  CHECK_THROWS_WITH(read_onnx(huge, host), Catch::Contains("which takes 17179869184 bytes; it has 4"));
  const std::string listed = relu_and(kInitializer, tensor("w", kInt64, {int64_t{1} << 40}).integer(7, 1));
  CHECK_THROWS_WITH(read_onnx(listed, host), Catch::Contains("more than the file has"));
  CHECK(host->live_bytes == 0);
  const int64_t most = int64_t{1} << 62;
  CHECK_THROWS_AS(read(relu_and(kInitializer, tensor("w", kFloat, {most, most, most}))), Error);
  check_fault(relu_and(kInitializer, tensor("w", kFloat, {-1}).text(9, "")), "a tensor has the size -1");
}

TEST_CASE("elements of another type, or too few or many of them, are errors") {
  check_fault(relu_and(kInitializer, tensor("w", kFloat, {1}).integer(7, 1)), "its elements are of another type");
  check_fault(relu_and(kInitializer, tensor("w", kFloat, {1}).text(9, "12345")), "which takes 4 bytes; it has 5");
  check_fault(relu_and(kInitializer, tensor("w", kInt64, {1}).integer(7, 1).integer(7, 2)), "more elements than");
  check_fault(relu_and(kInitializer, tensor("w", kInt64, {2}).integer(7, 1)), "but has 1 elements only");
  check_fault(relu_and(kInitializer, tensor("w", kInt8, {1}).integer(5, 300)), "holds 300, which is no int8");
  check_fault(relu_and(kInitializer, tensor("w", kString, {1}).text(6, "a")), "is of string");
  check_fault(relu_and(kInitializer, tensor("w", 99, {1}).text(9, "a")), "the type of number 99");
}

TEST_CASE("a graph makes each value once, and before its use") {
  check_fault(relu_and(kNode, node("Relu", {"x"}, "y")), "the value 'y' is made twice");
  check_fault(relu_and(kNode, node("Relu", {"nowhere"}, "z")),
              "the value 'nowhere' is used by node 'the Relu' ('Relu')");
  const Message cycle =
      Message().with(kNode, node("Relu", {"b"}, "a")).with(kNode, node("Relu", {"a"}, "b")).with(12, value("a"));
  check_fault(file(cycle), "nothing before makes it");
  check_fault(file(Message().with(12, value("y"))), "nothing makes the output 'y'");
}

// A node whose branch is this graph.
Message if_node(const Message& graph, const std::string& output) {
  return node("If", {"x"}, output).with(5, Message().text(1, "then_branch").with(6, graph).integer(20, 5));
}

TEST_CASE("nodes that a file has in another order are put behind what they use") {
  const Message branch = Message().with(kNode, node("Neg", {"b"}, "inner")).with(12, value("inner"));
  const std::string bytes = file(Message()
                                     .with(11, value("x"))
                                     .with(kNode, if_node(branch, "y"))
                                     .with(kNode, node("Tanh", {"x"}, "a"))
                                     .with(kNode, node("Relu", {"a"}, "b"))
                                     .with(12, value("y")));
  std::string ops;
  for (const OnnxNode& made : read(bytes).nodes) ops += made.op + " ";
  CHECK(ops == "Tanh Relu If ");
}

TEST_CASE("a graph in a node uses values around it, and keeps its own to itself") {
  const Message branch = Message().with(kNode, node("Neg", {"x"}, "inner")).with(12, value("inner"));
  const std::string both = file(Message()
                                    .with(11, value("x"))
                                    .with(kNode, if_node(branch, "a"))
                                    .with(kNode, if_node(branch, "b"))
                                    .with(12, value("b")));
  const auto [head, graph] = write_onnx(read(both));
  const OnnxModel model = read(head + graph);
  REQUIRE(model.nodes.size() == 2);
  const auto& inner = std::get<std::shared_ptr<const OnnxGraph>>(model.nodes[1].attributes.at(0).value);
  CHECK(inner->nodes.at(0).op == "Neg");
  CHECK(inner->outputs.at(0).name == "inner");

  check_fault(relu_and(kNode, if_node(Message().with(kNode, node("Neg", {"later"}, "i")).with(12, value("i")), "z")),
              "the value 'later' is used by node 'the Neg' ('Neg'), but nothing before makes it");
  check_fault(relu_and(kNode, if_node(Message().with(kNode, node("Neg", {"x"}, "y")), "z")), "'y' is made twice");
  check_fault(file(Message().with(11, value("x")).with(kNode, if_node(branch, "z")).with(12, value("inner"))),
              "nothing makes the output 'inner'");
}

TEST_CASE("graphs in nodes go only so deep") {
  const auto nested = [](int depth) {
    Message graph = Message().with(12, value("x"));
    for (int i = 0; i < depth; ++i)
      graph = Message().with(kNode, if_node(graph, "v" + std::to_string(i))).with(12, value("x"));
    return file(std::move(graph).with(11, value("x")));
  };
  CHECK(read(nested(kOnnxMaxDepth)).nodes.size() == 1);
  check_fault(nested(kOnnxMaxDepth + 1), "is a graph, in more than 8 others");
  check_fault(nested(10000), "is a graph, in more than 8 others");
}

// ---- functions -----------------------------------------------------------------------------------------------------

constexpr uint32_t kAttribute = 5, kDomain = 7, kFunction = 25;  // of a node, and of a model
constexpr int kInt = 2;                                          // the type of an attribute

Message function_of(const std::string& name, const std::vector<std::string>& inputs,
                    const std::vector<std::string>& outputs) {
  Message message = Message().text(1, name).text(10, "own");
  for (const std::string& input : inputs) message.writer.bytes(4, input);
  for (const std::string& output : outputs) message.writer.bytes(5, output);
  return message;
}

Message with_node(Message function, Message node) { return std::move(function).with(7, node); }

Message call(const std::string& name, const std::vector<std::string>& inputs, const std::string& output) {
  return node(name, inputs, output).text(kDomain, "own");
}

Message whole_number(const std::string& name, int64_t value) {
  return Message().text(1, name).integer(3, value).integer(20, kInt);
}

Message reference(const std::string& name, const std::string& to) {
  return Message().text(1, name).integer(20, kInt).text(21, to);
}

// The model z = Outer(x) of these functions.
std::string calling(const Message& call, const std::vector<Message>& functions) {
  const Message graph = Message().with(11, value("x")).with(kNode, call).with(12, value("z"));
  Message model = Message().integer(1, 8).with(8, Message().text(1, "").integer(2, 17)).with(7, graph);
  for (const Message& function : functions) model.writer.message(kFunction, function.writer);
  return model.writer.text();
}

std::string shown(const OnnxModel& model) {
  std::string all;
  for (const OnnxNode& node : model.nodes) {
    all += node.op + "(";
    for (const std::string& input : node.inputs) all += input + " ";
    for (const OnnxAttribute& attribute : node.attributes)
      all += attribute.name + "=" + std::to_string(std::get<int64_t>(attribute.value));
    all += ")";
    for (const std::string& output : node.outputs) all += " " + output;
    all += "\n";
  }
  return all;
}

TEST_CASE("a call of a function is its nodes, with names of their own") {
  const Message inner = with_node(
      with_node(function_of("Inner", {"a"}, {"b"}), node("Neg", {"a"}, "t")),
      node("Softmax", {"t"}, "b").with(kAttribute, reference("axis", "way")).with(kAttribute, reference("k", "none")));
  const Message outer = with_node(with_node(function_of("Outer", {"a", "unused"}, {"t"}), call("Inner", {"a"}, "u")),
                                  call("Inner", {"u"}, "t").with(kAttribute, whole_number("way", 3)));
  const Message with_default = Message(inner).with(11, whole_number("way", 1));
  CHECK(shown(read(calling(call("Outer", {"x"}, "z"), {outer, with_default}))) ==
        "Neg(x ) z:u::t\n"
        "Softmax(z:u::t axis=1) z:u\n"
        "Neg(z:u ) z::t\n"
        "Softmax(z::t axis=3) z\n");
  const Message twice = with_node(function_of("Outer", {"a"}, {"a"}), node("Neg", {"a"}, "t"));
  CHECK(shown(read(calling(call("Outer", {"x"}, "z"), {twice}))) == "Neg(x ) z:t\nIdentity(x ) z\n");
  // A name of another domain is another operator.
  CHECK(read(calling(node("Outer", {"x"}, "z"), {outer, inner})).nodes.at(0).op == "Outer");
}

TEST_CASE("functions that cannot be called say so") {
  const auto outer = [](const Message& node) { return with_node(function_of("Outer", {"a"}, {"b"}), node); };
  const Message plain = outer(node("Neg", {"a"}, "b")), one = call("Outer", {"x"}, "z");
  check_fault(calling(one, {outer(call("Outer", {"a"}, "b"))}), "is called in 16 others");
  check_fault(calling(one, {plain, plain}), "the function 'Outer' is there twice");
  check_fault(calling(call("Outer", {"x", "x"}, "z"), {plain}), "gives the function 'Outer' 2 inputs, and it has 1");
  check_fault(calling(one, {Message(plain).with(9, Message().text(1, "").integer(2, 11))}),
              "is of opset 11, and the model of 17");
  check_fault(calling(one, {outer(node("Neg", {"c"}, "b"))}), "the value 'z:c' is used by node");
  check_fault(relu_and(kNode, node("Neg", {"x"}, "z").with(kAttribute, reference("axis", "way"))),
              "attribute 'axis' is one of a function, and there is none around it");
}

TEST_CASE("functions of a small file make no large model") {
  std::vector<Message> functions;
  for (int level = 0; level < 10; ++level) {
    const auto name = [](int i) { return i == 0 ? std::string("Outer") : "Inner" + std::to_string(i); };
    Message function = function_of(name(level), {"a"}, {"b"});
    for (int i = 0; i < 20; ++i)
      function = with_node(std::move(function), call(name(level + 1), {"a"}, i == 0 ? "b" : "v" + std::to_string(i)));
    functions.push_back(std::move(function));
  }
  check_fault(calling(call("Outer", {"x"}, "z"), functions), "the graph");
}

TEST_CASE("what is no network of tensors is said by its name") {
  const auto branching = [](const Message& type) {  // whose branch takes such a value
    const Message branch = Message().with(11, value("l").with(2, type));
    return relu_and(kNode,
                    node("If", {"x"}, "z").with(5, Message().text(1, "then_branch").with(6, branch).integer(20, 5)));
  };
  const Message sequence = Message().with(4, Message()), optional = Message().with(9, Message());
  check_fault(branching(optional), "node 'the If' ('If'): attribute 'then_branch': input 'l' is a sequence, a map or");
  CHECK(read(branching(sequence)).nodes.size() == 2);  // which is handed on within the network
  check_fault(relu_and(11, value("list").with(2, sequence)), "input 'list' is a sequence");
  const Message twice = Message().text(1, "k").integer(3, 1).integer(20, 2);
  check_fault(relu_and(kNode, node("Op", {"x"}, "z").with(5, twice).with(5, twice)), "has the attribute 'k' twice");
  check_fault(relu_and(kNode, node("Op", {"x"}, "z").with(5, Message().text(1, "k").integer(20, 1))), "has no value");
}

}  // namespace moonflow
